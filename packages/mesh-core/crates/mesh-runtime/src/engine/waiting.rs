//! Threads and event loops that wait for arrivals, and read the connections while they wait.

use super::parker::{Parker, Wake};
use super::poller::WAKER;
use super::ready::ReadyQueue;
use super::wire::lock;
use super::{DeferredEffects, Engine, Shared};
use crate::mailbox::Closed;
use crate::node::{LinkId, Node, Progress, Reply};
use mesh_wire::frame::Frame;
use mesh_wire::id::PortId;
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the first thread sleeps before it checks for signals again.
///
/// A signal may arrive between the last check and the sleep.
const SIGNAL_SLICE: Duration = Duration::from_millis(200);

/// The thread or event loop to wake when something arrives at a port.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// A sleeping thread.
    Thread(Arc<Parker>),
    /// An event loop, as long as it exists.
    Loop(Weak<ReadyQueue>),
    /// Several waiters: all are woken, and a waiter that finds nothing continues to sleep.
    Many(Vec<Waiter>),
}

/// How long a leader leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// Until it has woken another thread: it expects its own reply soon.
    UntilThreadWoken,
    /// Until it has woken another thread or an event loop that can read the connections.
    UntilLoopWoken,
}

/// Which other waiters were woken by the frames that a thread has read.
#[derive(Clone, Copy, Default)]
pub(super) struct Woken {
    pub(super) threads: bool,
    /// Event loops that can read the connections themselves.
    pub(super) loops: bool,
}

impl Engine {
    /// Wakes `waiter` whenever something arrives at `port`, starting with existing arrivals.
    pub fn set_waiter(&self, port: PortId, waiter: Waiter) {
        let is_ready = {
            let mut shared = lock(&self.shared);
            shared.add_waiter(port, waiter.clone());
            shared.node.is_ready(port)
        };
        if is_ready {
            waiter.wake(port);
        }
    }

    /// Removes the waiters of `port`.
    pub fn clear_waiter(&self, port: PortId) {
        lock(&self.shared).waiters.remove(&port);
    }

    /// Waits for messages and takes up to `max` of them.
    ///
    /// Returns `Ok(false)` if the time is over or a signal arrived: the caller handles it and calls
    /// again.
    ///
    /// # Errors
    /// The reason if the port accepts no more messages.
    pub fn receive(
        &self,
        port: PortId,
        parker: &Arc<Parker>,
        until: Option<Instant>,
        max: usize,
        out: &mut Vec<Frame>,
    ) -> Result<bool, Closed> {
        loop {
            let mut deferred = DeferredEffects::default();
            {
                let mut shared = self.enter();
                shared.node.take_messages(port, max, out)?;
                if out.is_empty() {
                    shared.add_waiter(port, Waiter::Thread(Arc::clone(parker)));
                }
                shared.collect(&mut deferred, &*self.descriptors);
            }
            self.finish(deferred);
            if !out.is_empty() {
                return Ok(true);
            }
            if matches!(
                self.sleep(parker, until, Lead::UntilLoopWoken),
                Wake::TimedOut | Wake::Interrupted
            ) {
                return Ok(false);
            }
        }
    }

    /// Waits for the replies of a call: all of them, or any if it is a stream.
    ///
    /// Returns `None` if the time is over or a signal arrived; the call continues.
    pub fn wait_replies(
        &self,
        reply_port: PortId,
        parker: &Arc<Parker>,
        until: Option<Instant>,
        out: &mut Vec<Reply>,
    ) -> Option<Progress> {
        loop {
            {
                let mut shared = lock(&self.shared);
                if shared.node.is_ready(reply_port) {
                    let progress = shared.node.take_replies(reply_port, out);
                    if progress == Progress::Complete {
                        shared.waiters.remove(&reply_port);
                    }
                    return Some(progress);
                }
                shared.add_waiter(reply_port, Waiter::Thread(Arc::clone(parker)));
            }
            if matches!(
                self.sleep(parker, until, Lead::UntilThreadWoken),
                Wake::TimedOut | Wake::Interrupted
            ) {
                return None;
            }
        }
    }

    /// Waits until something has arrived at a port, without taking it.
    ///
    /// Arrivals since [`Engine::set_waiter`] with this thread count, even if another thread has
    /// already taken them. This may return early, for example at the end of the time or after a
    /// signal. The caller checks and calls again.
    pub fn wait_ready(&self, port: PortId, parker: &Arc<Parker>, until: Option<Instant>) {
        {
            let mut shared = lock(&self.shared);
            if shared.node.is_ready(port) {
                return;
            }
            shared.add_waiter(port, Waiter::Thread(Arc::clone(parker)));
        }
        self.sleep(parker, until, Lead::UntilThreadWoken);
    }

    /// Moves the replies that have arrived into `out`; removes the waiters of a complete call.
    pub fn take_replies(&self, reply_port: PortId, out: &mut Vec<Reply>) -> Progress {
        let mut shared = lock(&self.shared);
        let progress = shared.node.take_replies(reply_port, out);
        if progress == Progress::Complete {
            shared.waiters.remove(&reply_port);
        }
        progress
    }

    /// Stops waiting for the missing replies of a call.
    pub fn forget(&self, reply_port: PortId) {
        self.end_wait(reply_port, Node::forget);
    }

    /// Like [`Engine::forget`]; an exception that the call raises is reported to the agent.
    pub fn abandon(&self, reply_port: PortId) {
        self.end_wait(reply_port, Node::abandon);
    }

    fn end_wait(&self, reply_port: PortId, end: fn(&mut Node, PortId)) {
        if self.is_aborted() {
            return;
        }
        let mut deferred = DeferredEffects::default();
        {
            let mut shared = lock(&self.shared);
            shared.waiters.remove(&reply_port);
            end(&mut shared.node, reply_port);
            if !shared.node.has_effects() {
                return;
            }
            shared.collect(&mut deferred, &*self.descriptors);
        }
        self.finish(deferred);
    }

    /// Sleeps until a receiver may have capacity again.
    ///
    /// Returns `false` if the time is over or a signal arrived.
    pub fn wait_credit(
        &self,
        parker: &Arc<Parker>,
        until: Option<Instant>,
        has_capacity: impl Fn(&Node) -> bool,
    ) -> bool {
        {
            let mut shared = lock(&self.shared);
            if has_capacity(&shared.node) {
                return true;
            }
            shared.credit_waiters.push(Arc::clone(parker));
        }
        !matches!(
            self.sleep(parker, until, Lead::UntilThreadWoken),
            Wake::TimedOut | Wake::Interrupted
        )
    }

    /// Sleeps until woken, and reads the connections while it waits if no other thread does.
    fn sleep(&self, parker: &Arc<Parker>, until: Option<Instant>, lead: Lead) -> Wake {
        let slice = if parker.takes_signals() {
            let slice = Instant::now() + SIGNAL_SLICE;
            Some(until.map_or(slice, |until| until.min(slice)))
        } else {
            until
        };
        if !self.begin_lead() {
            return parker.park(slice);
        }
        let woken = self.lead_until(parker, slice, lead);
        self.end_lead();
        match woken {
            Wake::HandedOver => parker.park(slice),
            woken => woken,
        }
    }

    /// Makes the calling thread the leader, unless there is one.
    pub(super) fn begin_lead(&self) -> bool {
        self.is_led.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn end_lead(&self) {
        self.led_until_us.store(self.micros(), Ordering::Relaxed);
        self.is_led.store(false, Ordering::SeqCst);
    }

    fn lead_until(&self, parker: &Arc<Parker>, until: Option<Instant>, lead: Lead) -> Wake {
        let yields = lead == Lead::UntilLoopWoken;
        let mut tokens = Vec::new();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Wake::TimedOut;
            }
            if !parker.lead() {
                return Wake::Notified;
            }
            tokens.clear();
            let slept = self.lead.sleep(left, &mut tokens);
            let mut is_woken = parker.end_sleep();
            let mut woke_others = false;
            for token in &tokens {
                match *token {
                    WAKER => self.lead.waker.reset(),
                    token => {
                        let woken = self.read_link(LinkId(token as u32), Some(parker));
                        woke_others |= woken.threads || (woken.loops && yields);
                    }
                }
            }
            is_woken |= parker.end_sleep();
            if is_woken {
                return Wake::Notified;
            }
            if woke_others {
                return Wake::HandedOver;
            }
            if slept == Err(Errno::INTR) {
                return Wake::Interrupted;
            }
        }
    }
}

impl Shared {
    /// Adds a waiter for a port to the existing ones.
    fn add_waiter(&mut self, port: PortId, waiter: Waiter) {
        match self.waiters.entry(port) {
            Entry::Vacant(entry) => {
                entry.insert(waiter);
            }
            Entry::Occupied(mut entry) => entry.get_mut().join(waiter),
        }
    }
}

impl Waiter {
    pub(super) fn wake(&self, port: PortId) {
        match self {
            Self::Thread(parker) => parker.unpark(),
            Self::Loop(queue) => queue.upgrade().into_iter().for_each(|queue| queue.push(port)),
            Self::Many(waiters) => waiters.iter().for_each(|waiter| waiter.wake(port)),
        }
    }

    /// Adds another waiter, once.
    fn join(&mut self, other: Self) {
        if let Self::Many(waiters) = self {
            waiters.retain(|waiter| !waiter.is_gone());
            if !waiters.iter().any(|waiter| waiter.is_same(&other)) {
                waiters.push(other);
            }
        } else if !self.is_same(&other) {
            let first = std::mem::replace(self, Self::Many(Vec::new()));
            *self = Self::Many(vec![first, other]);
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            // A live thread holds a reference to its parker.
            Self::Thread(parker) => Arc::strong_count(parker) == 1,
            Self::Loop(queue) => queue.strong_count() == 0,
            Self::Many(_) => false,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Thread(one), Self::Thread(other)) => Arc::ptr_eq(one, other),
            (Self::Loop(one), Self::Loop(other)) => Weak::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Adds this waiter to the waiters that `me` has woken.
    pub(super) fn note(&self, me: Option<&Arc<Parker>>, woken: &mut Woken) {
        match self {
            Self::Thread(parker) => {
                woken.threads |= me.is_some_and(|me| !Arc::ptr_eq(parker, me));
            }
            Self::Loop(queue) => {
                woken.loops |= queue.upgrade().is_some_and(|queue| queue.has_reader());
            }
            Self::Many(waiters) => waiters.iter().for_each(|waiter| waiter.note(me, woken)),
        }
    }
}
