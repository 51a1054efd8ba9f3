//! The threads of the programs: their waits, and when they run.

use super::{Cluster, Event};
use crate::message::Life;
use mesh_runtime::engine::ready::ReadyQueue;
use mesh_wire::id::PortId;
use std::sync::Weak;
use std::time::Duration;

/// The number of a thread of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ThreadId(pub u32);

/// The waiter that an event wakes.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// Wake the running thread, once.
    Thread,
    /// Notify an event loop, as long as it exists.
    Loop(Weak<ReadyQueue>),
}

/// The waiter that is woken by an arrival at a port.
#[derive(Clone, Debug)]
pub(super) enum Waiting {
    Thread(ThreadId),
    Loop(Weak<ReadyQueue>),
}

/// A thread, as the cluster sees it.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) life: Life,
    /// Incremented by each wait, so that the wake-ups of earlier waits are recognised.
    pub(super) generation: u32,
    pub(super) is_blocked: bool,
    /// It was woken while it ran, so its next wait returns immediately.
    pub(super) is_notified: bool,
}

impl Cluster {
    /// Adds a thread of a process, which waits for [`Cluster::wake`].
    pub fn add_thread(&mut self, life: Life) -> ThreadId {
        let thread = Thread { life, generation: 0, is_blocked: true, is_notified: false };
        self.threads.push(thread);
        ThreadId(self.threads.len() as u32 - 1)
    }

    /// Prepares the wait of the running thread.
    ///
    /// Returns `false` if it must not wait, because it was woken while it ran.
    pub fn begin_wait(&mut self, until: Option<Duration>) -> bool {
        let Some(id) = self.current else { return false };
        let thread = &mut self.threads[id.0 as usize];
        if std::mem::take(&mut thread.is_notified) {
            return false;
        }
        thread.is_blocked = true;
        thread.generation += 1;
        if let Some(until) = until {
            let event = Event::Wake(id, thread.generation);
            self.queue.add(until.max(self.now), event);
        }
        true
    }

    /// Makes a thread run soon, or makes its next wait return.
    pub fn wake(&mut self, id: ThreadId) {
        let thread = &mut self.threads[id.0 as usize];
        if !thread.is_blocked {
            thread.is_notified = true;
            return;
        }
        let event = Event::Wake(id, thread.generation);
        let host = self.members[thread.life as usize].id.host;
        let delay = Duration::from_nanos(self.rng.below(self.timing.wake_us * 1000) + 1);
        let delay = (delay + self.hiccup()) * self.slowness_of(host);
        self.queue.add(self.now + delay, event);
    }

    /// Makes a thread the running one, although it may wait; the driver resumes it directly.
    pub fn resume(&mut self, id: ThreadId) {
        let thread = &mut self.threads[id.0 as usize];
        thread.is_blocked = false;
        thread.is_notified = false;
        thread.generation += 1;
        self.current = Some(id);
    }

    /// The thread that runs.
    pub fn current(&self) -> Option<ThreadId> {
        self.current
    }

    /// Registers what to wake when something arrives at a port, or now if something has.
    pub fn set_waiter(&mut self, life: Life, port: PortId, waiter: Waiter) {
        let member = &mut self.members[life as usize];
        let waiters = member.waiters.entry(port).or_default();
        match (waiter, self.current) {
            (Waiter::Thread, Some(current)) => {
                let is_same = |one: &Waiting| matches!(one, Waiting::Thread(id) if *id == current);
                if !waiters.iter().any(is_same) {
                    waiters.push(Waiting::Thread(current));
                }
            }
            (Waiter::Thread, None) => {}
            (Waiter::Loop(queue), _) => {
                let is_other = |one: &Waiting| match one {
                    Waiting::Loop(other) => {
                        other.strong_count() > 0 && !Weak::ptr_eq(other, &queue)
                    }
                    Waiting::Thread(_) => true,
                };
                waiters.retain(is_other);
                waiters.push(Waiting::Loop(queue));
            }
        }
        if member.node.is_ready(port) {
            self.wake_waiters(life, port);
        }
    }

    /// Removes the waiters of a port.
    pub fn clear_waiters(&mut self, life: Life, port: PortId) {
        self.members[life as usize].waiters.remove(&port);
    }

    /// Wakes the running thread when a receiver of its process may have capacity again.
    pub fn wait_for_credit(&mut self, life: Life) {
        if let Some(current) = self.current {
            self.members[life as usize].credit_waiters.push(current);
        }
    }

    pub(super) fn wake_waiters(&mut self, life: Life, port: PortId) {
        let Some(waiters) = self.members[life as usize].waiters.get_mut(&port) else { return };
        let mut threads = Vec::new();
        waiters.retain(|waiter| match waiter {
            Waiting::Thread(thread) => {
                threads.push(*thread);
                false
            }
            Waiting::Loop(queue) => queue.upgrade().is_some_and(|queue| {
                queue.push(port);
                self.has_changed_queues = true;
                true
            }),
        });
        threads.into_iter().for_each(|thread| self.wake(thread));
    }
}
