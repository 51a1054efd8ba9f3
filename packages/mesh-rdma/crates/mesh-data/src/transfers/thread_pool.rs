//! The thread pool that copies pieces of transfers.
//!
//! A copy over a connection waits for another process, which may be slow or suspended. Threads that
//! wait for a process do not count against the limit of copying threads, so they do not delay other
//! copies until a second limit is reached. A thread that has been idle for some time exits.

use crate::domain::lock;
use crate::transfers::timer::Timer;
use crate::transfers::transfer::Transfer;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

const STACK_LEN: usize = 256 << 10;
/// The maximum number of copying threads; more threads do not copy faster on any known machine.
pub(crate) const COPIERS_MAX: usize = 4;
/// The maximum number of threads that wait for other processes.
const WAITERS_MAX: usize = 256;
/// How long an idle thread waits before it exits.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// How long a short transfer is reserved for its caller. A caller that waits for the transfer
/// executes it within a few microseconds. Waking a thread for it would take the processor from the
/// caller, or deliver the reply to another processor, which then has to be woken, too.
const CALLER_DELAY: Duration = Duration::from_micros(50);

/// A queue of transfers, and the threads that take pieces from its front.
#[derive(Default)]
pub(crate) struct ThreadPool {
    shared: Arc<Shared>,
    /// Expires when a short transfer was reserved for its caller for too long; `None` if there is
    /// no timer.
    timer: OnceLock<Option<Arc<Timer>>>,
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
    /// The threads that copy memory, and the threads that wait for other processes.
    copiers: usize,
    waiters: usize,
}

impl ThreadPool {
    /// Queues a transfer, for idle or new threads.
    pub(crate) fn add(&self, transfer: &Arc<Transfer>) {
        self.shared.add(transfer);
    }

    /// Reserves a short transfer for its caller, or for a thread if the caller does not wait for
    /// it.
    pub(crate) fn add_short(&self, transfer: &Arc<Transfer>) {
        let timer = self.timer.get_or_init(|| {
            let shared = Arc::downgrade(&self.shared);
            let fire = move || shared.upgrade().map(|shared| shared.wake_threads()).is_some();
            Timer::new("mesh-rdma-timer", fire).ok().map(Arc::new)
        });
        let Some(timer) = timer else { return self.add(transfer) };
        transfer.leave_to_caller(timer);
        let mut state = lock(&self.shared.state);
        let started = state.take_started();
        state.queue.push_back(Arc::clone(transfer));
        drop(state);
        drop(started);
        if timer.expect(CALLER_DELAY).is_err() {
            self.shared.wake_threads();
        }
    }
}

impl Shared {
    fn add(self: &Arc<Self>, transfer: &Arc<Transfer>) {
        let mut state = lock(&self.state);
        state.queue.push_back(Arc::clone(transfer));
        let started = state.take_started();
        let woken = self.start_threads_for(&mut state, transfer);
        drop(state);
        drop(started);
        (0..woken).for_each(|_| self.added.notify_one());
    }

    /// Makes threads process the queue.
    fn wake_threads(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let started = state.take_started();
        let first = state.queue.front().cloned();
        let woken = first.map_or(0, |first| self.start_threads_for(&mut state, &first));
        drop(state);
        drop(started);
        (0..woken).for_each(|_| self.added.notify_one());
    }

    /// Starts as many threads as the queue requires after a transfer was added, and returns how
    /// many idle threads the caller must wake.
    fn start_threads_for(self: &Arc<Self>, state: &mut State, transfer: &Transfer) -> usize {
        // Threads that have already been woken may be needed for earlier transfers.
        let demand: usize = state.queue.iter().map(|one| one.thread_demand()).sum();
        let may_begin = if transfer.may_block() {
            WAITERS_MAX.saturating_sub(state.waiters + state.idle)
        } else {
            copiers_max().saturating_sub(state.copiers)
        };
        let woken = demand.min(state.idle);
        let missing = demand.saturating_sub(state.idle).min(may_begin);
        let begun = (0..missing).filter(|_| Self::start_thread(self)).count();
        // A new thread counts as idle until it has checked the queue.
        state.idle += begun;
        woken
    }

    fn start_thread(shared: &Arc<Self>) -> bool {
        let shared = Arc::clone(shared);
        let builder = thread::Builder::new().name("mesh-rdma-mover".into());
        // Fewer threads only slow the transfers down, unless there are none at all; in that case,
        // the system is about to fail elsewhere, too.
        builder.stack_size(STACK_LEN).spawn(move || shared.run()).is_ok()
    }

    fn run(&self) {
        while let Some(transfer) = self.next() {
            while transfer.do_next() {}
            transfer.leave();
            let mut state = lock(&self.state);
            *state.active_threads(&transfer) -= 1;
            state.idle += 1;
            state.queue.retain(|one| !Arc::ptr_eq(one, &transfer));
        }
    }

    /// Returns the first transfer that needs another thread; `None` after an idle timeout.
    fn next(&self) -> Option<Arc<Transfer>> {
        let mut state = lock(&self.state);
        loop {
            let started = state.take_started();
            if !started.is_empty() {
                drop(state);
                drop(started);
                state = lock(&self.state);
                continue;
            }
            if let Some(transfer) = state.queue.iter().find(|one| one.enter()).cloned() {
                state.idle -= 1;
                *state.active_threads(&transfer) += 1;
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
    /// Removes transfers from the queue without pieces left to start. The caller drops them without
    /// the lock: dropping the last reference releases the memory, which may run foreign code.
    fn take_started(&mut self) -> Vec<Arc<Transfer>> {
        let (left, started) = self.queue.drain(..).partition(|one| one.has_pieces());
        self.queue = left;
        started.into()
    }

    fn active_threads(&mut self, transfer: &Transfer) -> &mut usize {
        if transfer.may_block() { &mut self.waiters } else { &mut self.copiers }
    }
}

fn copiers_max() -> usize {
    thread::available_parallelism().map_or(2, |count| count.get()).clamp(2, COPIERS_MAX)
}
