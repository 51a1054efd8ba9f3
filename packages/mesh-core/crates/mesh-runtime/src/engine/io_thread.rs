//! The IO thread: serves connections without a leader, flushes full sockets, and runs timers.

use super::Engine;
use super::deferred_effects::SWEEP_PERIOD;
use super::poller::{LISTENER, WAKER, WRITABLE};
use super::wire::lock;
use crate::node::LinkId;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the IO thread leaves the connections to a thread that was the leader until just now.
///
/// That thread will probably wait again soon, and then reads the new frames without a handover.
const LEADER_HEAD_START: Duration = Duration::from_micros(500);

/// How long the IO thread leaves the connections to event loops that watch them.
const LOOP_HEAD_START: Duration = Duration::from_micros(100);

impl Engine {
    pub(super) fn run_io(&self) {
        let mut tokens = Vec::new();
        while !self.is_closed.load(Ordering::SeqCst) {
            let left = self.run_timers();
            tokens.clear();
            // An interrupted sleep counts as a short one.
            let slept = self.io.sleep(left, &mut tokens);
            self.check_descriptors(slept.err());
            if tokens.iter().any(|token| *token < WRITABLE) {
                self.wait_for_others(&mut tokens);
            }
            for token in &tokens {
                match *token {
                    WAKER => self.io.waker.reset(),
                    LISTENER => self.accept(),
                    token if token & WRITABLE != 0 => self.writable(LinkId(token as u32)),
                    token => {
                        self.read_link(LinkId(token as u32), None);
                    }
                }
            }
        }
        let wires: Vec<_> = lock(&self.shared).wires.drain().map(|(_, wire)| wire).collect();
        for wire in wires {
            self.unwatch(&wire);
        }
    }

    /// Gives the threads that wait for arrivals the time to read them, and removes their tokens.
    fn wait_for_others(&self, tokens: &mut Vec<u64>) {
        if self.is_led_now() {
            std::thread::sleep(LEADER_HEAD_START);
            tokens.retain(|token| *token >= WRITABLE);
        } else if self.loop_count.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(LOOP_HEAD_START);
            tokens.retain(|token| *token >= WRITABLE);
            // A loop may be busy for long, so this thread reads the remaining data.
            let _ = self.io.sleep(Some(Duration::ZERO), tokens);
        }
    }

    /// Whether a thread leads, or did until just now.
    fn is_led_now(&self) -> bool {
        let since = self.micros().saturating_sub(self.led_until_us.load(Ordering::Relaxed));
        self.is_led.load(Ordering::SeqCst) || Duration::from_micros(since) < LEADER_HEAD_START
    }

    pub(super) fn micros(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Runs due timers; returns how long the IO thread may sleep.
    fn run_timers(&self) -> Option<Duration> {
        let now = Instant::now();
        self.with_node(|node| node.advance(now - self.epoch));
        self.close_unidentified(now);
        let shortage_end = self.end_shortage(now);
        let mut due = Vec::new();
        let left = {
            let mut shared = lock(&self.shared);
            while let Some(&Reverse((at, peer))) = shared.redials.peek() {
                if at > now {
                    break;
                }
                due.push(peer);
                shared.redials.pop();
            }
            let is_sweep_due = shared.sweep_at.is_some_and(|at| at <= now);
            if is_sweep_due {
                shared.sweep_at = self.descriptors.sweep().then(|| now + SWEEP_PERIOD);
            }
            let sweep = shared.sweep_at.map(|at| at - now);
            let unidentified = shared.unidentified.next_due().map(|at| at - now);
            let redial = shared.redials.peek().map(|Reverse((at, _))| *at - now);
            let deadline = shared.node.next_deadline();
            let deadline = deadline.map(|at| at.saturating_sub(now - self.epoch));
            let shortage = shortage_end.map(|at| at - now);
            [redial, deadline, sweep, unidentified, shortage].into_iter().flatten().min()
        };
        let left = if due.is_empty() { left } else { Some(Duration::ZERO) };
        for peer in due {
            self.connect(peer);
        }
        left
    }
}
