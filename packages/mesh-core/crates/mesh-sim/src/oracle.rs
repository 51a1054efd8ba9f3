//! The invariants of every world. The oracle observes everything and influences nothing.

mod death_reports;

use crate::message::{Life, Task};
use crate::rng::mix;
use death_reports::{DeathReports, Sent};
use mesh_runtime::fault;
use mesh_runtime::hash::FastMap;
use mesh_wire::id::{HostId, PortId, ProcId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of violations that are kept; the first one matters most.
const VIOLATIONS_MAX: usize = 200;

/// The value that an endpoint returns for a message.
pub fn value_of(tag: u64, rank: u32) -> u64 {
    mix(tag ^ u64::from(rank) << 40)
}

/// A one-way message to one rank that has not arrived.
#[derive(Debug)]
struct OneWay {
    sender: Life,
    proc: ProcId,
    target: Life,
    port: PortId,
    sent_at: Duration,
}

/// A message whose sender waits for replies.
#[derive(Debug)]
struct Awaited {
    caller: Life,
    sent_at: Duration,
    /// The process of each rank when the message was sent; `u32::MAX` if the slot was empty.
    targets: Vec<(u32, ProcId, Life)>,
    replied: Vec<bool>,
}

/// Statistics for the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages that arrived at an actor.
    pub received: u64,
    /// Replies that arrived at a caller.
    pub replied: u64,
    /// The replies that are faults.
    pub faults: u64,
    /// Failures that no owner handled.
    pub roots: u64,
    /// Ranks that were restarted.
    pub restarts: u64,
    /// Casts that completed.
    pub casts: u64,
    /// Actors that were started.
    pub spawned: u64,
    /// Processes that were killed.
    pub deaths: u64,
    /// Probes of silent hosts. All of them got a reply.
    pub probes: u64,
}

/// The test oracle, which checks the invariants of a world.
#[derive(Debug, Default)]
pub struct Oracle {
    violations: Vec<String>,
    /// Statistics for the summary.
    pub tally: Tally,
    /// The slot and incarnation of each process, in the order of the starts.
    born: Vec<(ProcId, u32)>,
    /// The time of death of each process, in the order of the starts.
    died_at: Vec<Option<Duration>>,
    death_reports: DeathReports,
    /// The last sequence number that an actor's mailbox delivered, by sender and stream.
    seen: FastMap<u64, u64>,
    one_way: BTreeMap<(u64, u32), OneWay>,
    awaited: FastMap<u64, Awaited>,
    /// The time at which an actor's mailbox was opened; `None` if the mailbox was ever closed.
    open_since: BTreeMap<(Life, PortId), Option<Duration>>,
    tags: u64,
}

impl Oracle {
    /// Records a violation of an invariant.
    pub fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what());
        }
    }

    /// Checks an invariant.
    pub fn expect(&mut self, is_true: bool, what: impl FnOnce() -> String) {
        if !is_true {
            self.violated(what);
        }
    }

    /// The violations in the order in which they were detected.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Allocates an id for a message.
    pub fn new_tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    /// Records the start of a process.
    pub fn started(&mut self, life: Life, proc: ProcId, incarnation: u32) {
        assert_eq!(self.died_at.len(), life as usize, "lives are numbered in the order of starts");
        self.born.push((proc, incarnation));
        self.died_at.push(None);
    }

    /// Records a period in which the agent of a host is stopped.
    pub fn agent_stalled(&mut self, host: HostId, from: Duration, until: Duration) {
        self.death_reports.agent_stalled(host, from, until);
    }

    /// Records that a process which requested a replacement was notified of the new incarnation.
    /// None of its later messages may fail with the death of a previous incarnation.
    pub fn replaced(&mut self, owner: Life, proc: ProcId, incarnation: u32, now: Duration) {
        self.death_reports.replaced(owner, proc, incarnation, now);
    }

    fn may_be_unreported(&self, sender: Life, target: Life, proc: ProcId, at: Duration) -> bool {
        let (sender_proc, _) = self.born[sender as usize];
        // The incarnation is unknown if the slot was empty when the message was sent.
        let incarnation = self.born.get(target as usize).map_or(u32::MAX, |born| born.1);
        let sender_host = sender_proc.host;
        self.death_reports.may_be_unreported(&Sent { sender, sender_host, proc, incarnation, at })
    }

    /// Records the death of a process.
    pub fn died(&mut self, life: Life, proc: ProcId, now: Duration) {
        self.died_at[life as usize] = Some(now);
        self.death_reports.died(proc, now);
        self.tally.deaths += 1;
    }

    /// Whether a process has died or never existed.
    pub fn is_dead(&self, life: Life) -> bool {
        self.died_at.get(life as usize).is_none_or(Option::is_some)
    }

    /// Records that an actor's mailbox was opened.
    pub fn opened(&mut self, life: Life, port: PortId, now: Duration) {
        self.tally.spawned += 1;
        self.open_since.entry((life, port)).or_insert(Some(now));
    }

    /// Records that an actor's mailbox was closed: messages sent to it at any time may be lost.
    pub fn closed(&mut self, life: Life, port: PortId) {
        self.open_since.insert((life, port), None);
    }

    /// Records a one-way message.
    pub fn sent_one_way(
        &mut self,
        task: &Task,
        port: PortId,
        targets: impl Iterator<Item = (u32, ProcId, Life)>,
        now: Duration,
    ) {
        for (rank, proc, target) in targets {
            let sent = OneWay { sender: task.sender, proc, target, port, sent_at: now };
            self.one_way.insert((task.tag, rank), sent);
        }
    }

    /// Records a message that expects replies.
    pub fn sent_call(
        &mut self,
        tag: u64,
        caller: Life,
        targets: impl Iterator<Item = (u32, ProcId, Life)>,
        now: Duration,
    ) {
        let targets: Vec<_> = targets.collect();
        let replied = vec![false; targets.len()];
        self.awaited.insert(tag, Awaited { caller, sent_at: now, targets, replied });
    }

    /// Records that an actor took a message from its mailbox.
    pub fn received(&mut self, life: Life, port: PortId, rank: u32, task: &Task) {
        self.tally.received += 1;
        self.one_way.remove(&(task.tag, rank));
        let place = [u64::from(life), port.0, u64::from(task.sender), task.line];
        let key = place.iter().fold(0, |key, word| mix(key ^ word));
        let last = self.seen.insert(key, task.serial).unwrap_or(0);
        self.expect(task.serial > last, || {
            format!("order: life {life} port {port:?} got {task:?} after serial {last}")
        });
    }

    /// Records that a caller received the reply of one rank.
    pub fn replied(&mut self, tag: u64, rank: u32, from: ProcId, code: u8, value: Option<u64>) {
        self.tally.replied += 1;
        self.tally.faults += u64::from(code != 0);
        let Some(call) = self.awaited.get_mut(&tag) else {
            return self.violated(|| format!("reply {rank} of call {tag} that nobody made"));
        };
        let guess = rank as usize;
        let is_it = |target: &(u32, ProcId, Life)| target.0 == rank && target.1 == from;
        let place = match call.targets.get(guess) {
            Some(target) if is_it(target) => Some(guess),
            _ => call.targets.iter().position(is_it),
        };
        let Some(place) = place else {
            return self.violated(|| format!("call {tag} got a reply from {from} as rank {rank}"));
        };
        let had_replied = std::mem::replace(&mut call.replied[place], true);
        let target = call.targets[place].2;
        let (caller, sent_at) = (call.caller, call.sent_at);
        self.expect(!had_replied, || format!("call {tag} got two replies from rank {rank}"));
        match code {
            0 => self.expect(value == Some(value_of(tag, rank)), || {
                format!("call {tag} got the reply of another call from {from} rank {rank}")
            }),
            fault::PROC_DIED => {
                let has_died =
                    self.is_dead(target) || self.may_be_unreported(caller, target, from, sent_at);
                self.expect(has_died, || {
                    format!("call {tag}: {from} is reported dead, but life {target} is not")
                });
            }
            fault::HOST_DIED => self.expect(self.death_reports.has_died(from.host.agent()), || {
                format!("call {tag}: the host of {from} is reported dead, but its agent is not")
            }),
            fault::RAISED
            | fault::ACTOR_FAILED
            | fault::STOPPED
            | fault::DEADLINE
            | fault::CANCELLED => {}
            _ => self.violated(|| format!("call {tag} rank {rank}: fault {code} is not typed")),
        }
    }

    /// Records that a caller received all replies of a call.
    pub fn call_ended(&mut self, tag: u64) {
        if let Some(call) = self.awaited.remove(&tag) {
            let open = call.replied.iter().filter(|has_replied| !**has_replied).count();
            self.expect(open == 0, || format!("call {tag} ended, {open} ranks did not reply"));
        }
    }

    /// Records that a caller abandoned a call.
    pub fn call_given_up(&mut self, tag: u64) {
        self.awaited.remove(&tag);
    }

    /// Checks a quiescent world: no live process waits, and every message that had to arrive has
    /// arrived.
    pub fn check_quiet(&mut self) {
        let awaited = std::mem::take(&mut self.awaited);
        let mut stuck: Vec<_> =
            awaited.iter().filter(|(_, call)| !self.is_dead(call.caller)).collect();
        stuck.sort_by_key(|(tag, _)| **tag);
        for (tag, call) in stuck {
            let open = call.replied.iter().position(|has_replied| !has_replied);
            let target = open.map(|place| call.targets[place]);
            self.violated(|| {
                let (caller, at) = (call.caller, call.sent_at);
                format!("call {tag} of life {caller} at {at:?} never ends: no word of {target:?}")
            });
        }
        for ((tag, rank), sent) in std::mem::take(&mut self.one_way) {
            let was_open = matches!(
                self.open_since.get(&(sent.target, sent.port)),
                Some(Some(since)) if *since <= sent.sent_at
            );
            let may_be_lost = self.is_dead(sent.sender)
                || self.is_dead(sent.target)
                || self.may_be_unreported(sent.sender, sent.target, sent.proc, sent.sent_at)
                || !was_open;
            self.expect(may_be_lost, || format!("message {tag} to rank {rank} is lost: {sent:?}"));
        }
    }
}
