//! The failures that are not settled yet, and their outcomes.

use super::{Effect, EscalationReason, FailureId, Outcome, Owner, Verdict};
use mesh_wire::id::PortId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The state of a failure for one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Restarts are in progress, and nothing else is needed so far.
    Restarting,
    /// The owner's `__supervise__` is deciding.
    Deciding,
    /// A caller may still be waiting for the failed rank.
    Grace { until: Duration },
}

#[derive(Debug)]
struct Record {
    stage: Stage,
    why: EscalationReason,
    is_observed: bool,
    /// Number of restarts that would repair a part of it.
    rounds: u32,
}

type Key = (FailureId, Owner);

/// Open failures. A failure that affects several meshes of one owner is one entry.
#[derive(Debug)]
pub(super) struct Ledger {
    grace: Duration,
    recent_max: usize,
    open: BTreeMap<Key, Record>,
    /// Ends of grace periods, soonest first: all periods have the same length.
    deadlines: VecDeque<(Duration, Key)>,
    /// Failures that callers received recently. The report here may follow later.
    observed: VecDeque<(Duration, FailureId)>,
    /// Failures that were recently settled for good, oldest first.
    ///
    /// Parts of them may still be reported.
    recent: Recent<Key>,
    /// Failures that a caller received.
    received: Recent<FailureId>,
    /// Failures that the program was notified of.
    notified: Recent<FailureId>,
    /// Losses of hosts.
    lost_hosts: Recent<FailureId>,
}

/// A bounded set that forgets its oldest members.
#[derive(Debug)]
struct Recent<T> {
    len_max: usize,
    order: VecDeque<T>,
    members: BTreeSet<T>,
}

impl<T: Copy + Ord> Recent<T> {
    fn new(len_max: usize) -> Self {
        Self { len_max, order: VecDeque::new(), members: BTreeSet::new() }
    }

    fn contains(&self, member: T) -> bool {
        self.members.contains(&member)
    }

    /// Returns false if it is a member already.
    fn insert(&mut self, member: T) -> bool {
        if !self.members.insert(member) {
            return false;
        }
        self.order.push_back(member);
        if self.order.len() > self.len_max {
            let oldest = self.order.pop_front().expect("it is over its bound");
            self.members.remove(&oldest);
        }
        true
    }
}

impl Ledger {
    pub(super) fn new(grace: Duration, recent_max: usize) -> Self {
        Self {
            grace,
            recent_max,
            received: Recent::new(recent_max),
            notified: Recent::new(recent_max),
            lost_hosts: Recent::new(recent_max),
            open: BTreeMap::new(),
            deadlines: VecDeque::new(),
            observed: VecDeque::new(),
            recent: Recent::new(recent_max),
        }
    }

    pub(super) fn open_count(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_open(&self, failure: FailureId, owner: Owner) -> bool {
        self.open.contains_key(&(failure, owner))
    }

    /// Returns when the next grace period ends.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Notes that a restart has started or was joined that repairs a part of the failure.
    pub(super) fn restart_begun(&mut self, failure: FailureId, owner: Owner) {
        if self.recent.contains((failure, owner)) {
            return;
        }
        let is_observed = self.was_observed(failure);
        let record = self.open.entry((failure, owner)).or_insert(Record {
            stage: Stage::Restarting,
            why: EscalationReason::NoRestart,
            is_observed,
            rounds: 0,
        });
        record.rounds += 1;
    }

    /// Notes that a restart has ended, or was abandoned because its child is being stopped.
    pub(super) fn round_ended(
        &mut self,
        failure: FailureId,
        owner: Owner,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let Some(record) = self.open.get_mut(&(failure, owner)) else { return };
        record.rounds = record.rounds.saturating_sub(1);
        if record.rounds == 0 && record.stage == Stage::Restarting {
            self.settle((failure, owner), outcome, out);
        }
    }

    /// Reports a part of the failure that no restart will repair.
    ///
    /// The report is passed to `__supervise__` of the owner if it exists; otherwise the failure is
    /// pending until a caller receives it.
    pub(super) fn report(
        &mut self,
        failure: FailureId,
        owner: Owner,
        why: EscalationReason,
        has_supervise: bool,
        now: Duration,
        out: &mut Vec<Effect>,
    ) {
        let key = (failure, owner);
        if self.recent.contains(key) {
            return;
        }
        let is_observed = self.was_observed(failure);
        let record = self.open.entry(key).or_insert(Record {
            stage: Stage::Restarting,
            why,
            is_observed,
            rounds: 0,
        });
        if record.stage != Stage::Restarting {
            return;
        }
        record.why = why;
        if has_supervise {
            record.stage = Stage::Deciding;
            out.push(Effect::CallSupervise { owner, failure, why });
        } else {
            self.wait_for_observer(key, now, out);
        }
    }

    /// Notes that a caller has received the failure.
    pub(super) fn observed(&mut self, failure: FailureId, now: Duration, out: &mut Vec<Effect>) {
        self.received.insert(failure);
        if !self.was_observed(failure) {
            self.observed.push_back((now + self.grace, failure));
            if self.observed.len() > self.recent_max {
                self.observed.pop_front();
            }
        }
        let all = (failure, PortId(0))..=(failure, PortId(u64::MAX));
        let mut consumed = Vec::new();
        for (key, record) in self.open.range_mut(all) {
            record.is_observed = true;
            if matches!(record.stage, Stage::Grace { .. }) {
                consumed.push(*key);
            }
        }
        for key in consumed {
            self.settle(key, Outcome::Observed, out);
        }
    }

    /// Whether a caller has received the failure, or the program was notified of it.
    pub(super) fn was_received(&self, failure: FailureId) -> bool {
        self.received.contains(failure) || self.notified.contains(failure)
    }

    /// Notes that the program is notified. Returns false if it was before.
    pub(super) fn notify_program(&mut self, failure: FailureId) -> bool {
        self.notified.insert(failure)
    }

    /// Notes that a host was lost. Returns false if the loss was noted before.
    pub(super) fn lose_host(&mut self, failure: FailureId) -> bool {
        self.lost_hosts.insert(failure)
    }

    /// Handles the decision of the owner's `__supervise__`. Returns the reason if the owner fails.
    pub(super) fn handled(
        &mut self,
        failure: FailureId,
        owner: Owner,
        verdict: Verdict,
        now: Duration,
        out: &mut Vec<Effect>,
    ) -> Option<EscalationReason> {
        let key = (failure, owner);
        if self.open.get(&key)?.stage != Stage::Deciding {
            return None;
        }
        match verdict {
            Verdict::Handled => self.settle(key, Outcome::Handled, out),
            Verdict::Unhandled => self.wait_for_observer(key, now, out),
            Verdict::Raised => return Some(EscalationReason::SuperviseRaised),
        }
        None
    }

    /// Returns the failures whose grace period has passed without an observer.
    pub(super) fn overdue(&mut self, now: Duration) -> Vec<(FailureId, Owner, EscalationReason)> {
        while self.observed.front().is_some_and(|(until, _)| *until <= now) {
            self.observed.pop_front();
        }
        let mut overdue = Vec::new();
        while let Some((at, key)) = self.deadlines.front().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_front();
            if let Some(record) = self.open.get(&key)
                && record.stage == (Stage::Grace { until: at })
            {
                overdue.push((key.0, key.1, record.why));
            }
        }
        overdue
    }

    /// Returns the failures of one owner that only wait for an observer.
    ///
    /// An owner that stops now has no time left to wait.
    pub(super) fn unobserved(&self, owner: Owner) -> Vec<(FailureId, EscalationReason)> {
        self.of_owner(owner)
            .filter(|(_, record)| matches!(record.stage, Stage::Grace { .. }))
            .map(|(failure, record)| (failure, record.why))
            .collect()
    }

    /// Returns the failures that `__supervise__` of the owner has not decided about yet.
    pub(super) fn undecided(&self, owner: Owner) -> Vec<(FailureId, EscalationReason)> {
        self.of_owner(owner)
            .filter(|(_, record)| record.stage == Stage::Deciding)
            .map(|(failure, record)| (failure, record.why))
            .collect()
    }

    /// Settles all open failures of an owner that itself fails.
    pub(super) fn settle_all(&mut self, owner: Owner, outcome: Outcome, out: &mut Vec<Effect>) {
        let keys: Vec<Key> = self.of_owner(owner).map(|(failure, _)| (failure, owner)).collect();
        for key in keys {
            self.settle(key, outcome, out);
        }
    }

    pub(super) fn settle(&mut self, key: Key, outcome: Outcome, out: &mut Vec<Effect>) {
        let Some(_record) = self.open.remove(&key) else { return };
        let (failure, owner) = key;
        out.push(Effect::Settled { failure, owner, outcome });
        // A repaired failure may later turn out to have affected something that cannot be repaired.
        if outcome != Outcome::Restarted {
            self.recent.insert(key);
        }
    }

    /// Waits for a caller to receive the failure until the grace period ends.
    fn wait_for_observer(&mut self, key: Key, now: Duration, out: &mut Vec<Effect>) {
        let record = self.open.get_mut(&key).expect("the caller holds an open failure");
        if record.is_observed {
            self.settle(key, Outcome::Observed, out);
            return;
        }
        let until = now + self.grace;
        record.stage = Stage::Grace { until };
        if self.deadlines.is_empty() {
            out.push(Effect::WakeAt(until));
        }
        self.deadlines.push_back((until, key));
    }

    fn of_owner(&self, owner: Owner) -> impl Iterator<Item = (FailureId, &Record)> {
        self.open.iter().filter(move |(key, _)| key.1 == owner).map(|(key, record)| (key.0, record))
    }

    fn was_observed(&self, failure: FailureId) -> bool {
        self.observed.iter().any(|(_, observed)| *observed == failure)
    }
}
