//! The thread pool that copies pieces of transfers.
//!
//! A copy over a connection waits for another process, which may be slow or stopped. Threads that
//! wait for a process do not count against the limit of copying threads, so up to a second limit
//! they do not delay other copies. A thread that has been idle for a while exits.

use crate::domain::lock;
use crate::transfers::alarm::Alarm;
use crate::transfers::transfer::Transfer;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

const STACK_LEN: usize = 256 << 10;
/// More threads than this do not copy faster on any machine that we know.
pub(crate) const COPIERS_MAX: usize = 4;
/// How many threads may wait for other processes.
const WAITERS_MAX: usize = 256;
/// How long a thread stays that has nothing to do.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// How long a short transfer waits for its caller to do it. Who waits for it does that within a
/// few microseconds; a thread that was woken for it would only take the caller's processor away,
/// or have the answer come to another one, which has to be woken too.
const LINGER: Duration = Duration::from_micros(50);

/// A queue of transfers, and the threads that take pieces from its front.
#[derive(Default)]
pub(crate) struct ThreadPool {
    shared: Arc<Shared>,
    /// Rings when a short transfer has waited; none where there cannot be one.
    alarm: OnceLock<Option<Arc<Alarm>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Transfer>>,
    idle: usize,
    /// At work on what only needs memory, and on what waits for other processes.
    copiers: usize,
    waiters: usize,
}

impl ThreadPool {
    /// Has a transfer done, by threads that are there or that begin now.
    pub(crate) fn add(&self, transfer: &Arc<Transfer>) {
        self.shared.add(transfer);
    }

    /// Has a short transfer done by its caller, or by a thread if the caller does not wait for it.
    pub(crate) fn add_short(&self, transfer: &Arc<Transfer>) {
        let alarm = self.alarm.get_or_init(|| {
            let shared = Arc::downgrade(&self.shared);
            let ring = move || shared.upgrade().map(|shared| shared.rouse()).is_some();
            Alarm::new("mesh-rdma-linger", ring).ok().map(Arc::new)
        });
        let Some(alarm) = alarm else { return self.add(transfer) };
        transfer.linger(alarm);
        let mut state = lock(&self.shared.state);
        let begun_whole = state.take_begun();
        state.queue.push_back(Arc::clone(transfer));
        drop(state);
        drop(begun_whole);
        if alarm.expect(LINGER).is_err() {
            self.shared.rouse();
        }
    }
}

impl Shared {
    fn add(self: &Arc<Self>, transfer: &Arc<Transfer>) {
        let mut state = lock(&self.state);
        state.queue.push_back(Arc::clone(transfer));
        let begun_whole = state.take_begun();
        let woken = self.begin_for(&mut state, transfer);
        drop(state);
        drop(begun_whole);
        (0..woken).for_each(|_| self.added.notify_one());
    }

    /// Has threads look at what is in the queue.
    fn rouse(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let begun_whole = state.take_begun();
        let first = state.queue.front().cloned();
        let woken = first.map_or(0, |first| self.begin_for(&mut state, &first));
        drop(state);
        drop(begun_whole);
        (0..woken).for_each(|_| self.added.notify_one());
    }

    /// Begins as many threads as the queue wants, of which a transfer is the last or the first;
    /// gives how many of those that have nothing to do are to be woken.
    fn begin_for(self: &Arc<Self>, state: &mut State, transfer: &Transfer) -> usize {
        // Those who have been woken already may have something before this to do.
        let demand: usize = state.queue.iter().map(|one| one.places()).sum();
        let may_begin = if transfer.may_block() {
            WAITERS_MAX.saturating_sub(state.waiters + state.idle)
        } else {
            copiers_max().saturating_sub(state.copiers)
        };
        let woken = demand.min(state.idle);
        let missing = demand.saturating_sub(state.idle).min(may_begin);
        let begun = (0..missing).filter(|_| Self::begin(self)).count();
        // Whoever begins counts as idle until it has looked at the queue.
        state.idle += begun;
        woken
    }

    fn begin(shared: &Arc<Self>) -> bool {
        let shared = Arc::clone(shared);
        let builder = thread::Builder::new().name("mesh-rdma-mover".into());
        // With fewer threads it takes longer, unless there are none at all: then the system is
        // about to fail in other places too.
        builder.stack_size(STACK_LEN).spawn(move || shared.run()).is_ok()
    }

    fn run(&self) {
        while let Some(transfer) = self.next() {
            while transfer.do_next() {}
            transfer.leave();
            let mut state = lock(&self.state);
            *state.at_work(&transfer) -= 1;
            state.idle += 1;
            state.queue.retain(|one| !Arc::ptr_eq(one, &transfer));
        }
    }

    /// The first transfer that can do with one more; none when it was waited for in vain.
    fn next(&self) -> Option<Arc<Transfer>> {
        let mut state = lock(&self.state);
        loop {
            let begun_whole = state.take_begun();
            if !begun_whole.is_empty() {
                drop(state);
                drop(begun_whole);
                state = lock(&self.state);
                continue;
            }
            if let Some(transfer) = state.queue.iter().find(|one| one.enter()).cloned() {
                state.idle -= 1;
                *state.at_work(&transfer) += 1;
                return Some(transfer);
            }
            let waited = self.added.wait_timeout(state, IDLE_LIMIT);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && state.queue.is_empty() {
                state.idle -= 1;
                return None;
            }
        }
    }
}

impl State {
    /// Takes out of the queue what nothing is left to do of. It is to be dropped when the lock is
    /// free: the last to drop a transfer lets its memory go, which may wait for code of others.
    fn take_begun(&mut self) -> Vec<Arc<Transfer>> {
        let (left, begun) = self.queue.drain(..).partition(|one| one.has_pieces());
        self.queue = left;
        begun.into()
    }

    fn at_work(&mut self, transfer: &Transfer) -> &mut usize {
        if transfer.may_block() { &mut self.waiters } else { &mut self.copiers }
    }
}

fn copiers_max() -> usize {
    thread::available_parallelism().map_or(2, |count| count.get()).clamp(2, COPIERS_MAX)
}
