//! Supervision: propagation of failures, restarts, and the order of stopping.
//!
//! One [`Supervisor`] per process manages the meshes that actors of this process own. It is pure:
//! the driver passes [`Event`]s to it and carries out its [`Effect`]s. The rules are in
//! `docs/protocol/supervision.md`.

mod child;
mod event;
mod ledger;
mod policy;

pub use child::Child;
pub use event::{
    ChildId, Effect, EscalationReason, Event, FailureId, Outcome, Owner, ROOT, Verdict,
};
pub use policy::{FailureKind, Policy, Restart, Scope};

use child::{RestartDecision, RoundOutcome};
use ledger::Ledger;
use policy::Reaction;
use std::collections::BTreeMap;
use std::time::Duration;

/// Limits of a supervisor.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a failure without an observer waits for a caller before it propagates.
    pub failure_grace: Duration,
    /// Number of settled or observed failures to remember, so that late reports are recognised.
    pub recent_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { failure_grace: Duration::from_secs(1), recent_max: 1024 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnerState {
    Running,
    Stopping,
    Failed,
}

#[derive(Debug)]
struct OwnerEntry {
    has_supervise: bool,
    state: OwnerState,
    /// In the order of creation.
    children: Vec<ChildId>,
}

/// The owners of one process, their meshes, and the failures that are not settled.
#[derive(Debug)]
pub struct Supervisor {
    owners: BTreeMap<Owner, OwnerEntry>,
    children: BTreeMap<ChildId, Child>,
    ledger: Ledger,
}

impl Supervisor {
    /// Creates a supervisor that knows only the root.
    pub fn new(config: Config) -> Self {
        let mut supervisor = Self {
            owners: BTreeMap::new(),
            children: BTreeMap::new(),
            ledger: Ledger::new(config.failure_grace, config.recent_max),
        };
        supervisor.owner_started(ROOT, false);
        supervisor
    }

    /// Handles one event and appends the resulting effects to `out`, in order.
    pub fn step(&mut self, event: Event, now: Duration, out: &mut Vec<Effect>) {
        match event {
            Event::OwnerStarted { owner, has_supervise } => {
                self.owner_started(owner, has_supervise);
            }
            Event::ChildSpawned { owner, child, ranks, policy } => {
                self.child_spawned(owner, child, Child::new(owner, ranks, policy), out);
            }
            Event::RankFailed { child, rank, failure, kind } => {
                self.rank_failed(child, rank, failure, kind, now, out);
            }
            Event::Observed { failure } => self.ledger.observed(failure, now, out),
            Event::Handled { failure, owner, verdict } => {
                if let Some(why) = self.ledger.handled(failure, owner, verdict, now, out) {
                    self.propagate(failure, owner, why, out);
                }
            }
            Event::RestartDone { child, rank, ok } => self.restart_done(child, rank, ok, now, out),
            Event::ChildStopping { child } => self.child_stopping(child, out),
            Event::ChildStopped { child } => self.child_stopped(child, out),
            Event::OwnerFailed { owner } => self.owner_failed(owner, out),
            Event::OwnerStopping { owner } => self.owner_stopping(owner, out),
            Event::OwnerStopped { owner } => self.owner_stopped(owner, out),
            Event::Tick => {}
        }
        self.propagate_overdue(now, out);
    }

    /// Returns a mesh that has not stopped yet.
    pub fn child(&self, child: ChildId) -> Option<&Child> {
        self.children.get(&child)
    }

    /// Returns the meshes of an owner, in the order of creation.
    pub fn children_of(&self, owner: Owner) -> &[ChildId] {
        self.owners.get(&owner).map_or(&[], |entry| &entry.children)
    }

    /// Whether neither a caller nor the program has received the failure of a rank, and it was not
    /// reported before its mesh began to stop.
    pub fn is_new(&self, child: ChildId, rank: u32, failure: FailureId) -> bool {
        let is_reported = self.children.get(&child).is_some_and(|c| c.is_reported(rank, failure));
        !is_reported && !self.ledger.was_received(failure)
    }

    /// Whether a caller has received the failure, or the program was notified of it.
    pub fn was_received(&self, failure: FailureId) -> bool {
        self.ledger.was_received(failure)
    }

    /// Notes that the program is notified of a failure without a mesh that could report it.
    ///
    /// Returns false if a caller or the program has received it already.
    pub fn notify_program(&mut self, failure: FailureId) -> bool {
        !self.ledger.was_received(failure) && self.ledger.notify_program(failure)
    }

    /// Notes the loss of a host. Returns false if the same loss was noted before: it is reported
    /// once for every process of the host.
    pub fn lose_host(&mut self, failure: FailureId) -> bool {
        self.ledger.lose_host(failure)
    }

    /// Whether the failure is not settled yet for the owner.
    pub fn is_open(&self, failure: FailureId, owner: Owner) -> bool {
        self.ledger.is_open(failure, owner)
    }

    /// Returns the number of failures that are not settled.
    pub fn open_count(&self) -> usize {
        self.ledger.open_count()
    }

    /// Returns when [`Event::Tick`] is due next, if at all.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.ledger.next_deadline()
    }

    fn owner_started(&mut self, owner: Owner, has_supervise: bool) {
        let entry = OwnerEntry { has_supervise, state: OwnerState::Running, children: Vec::new() };
        self.owners.entry(owner).or_insert(entry).has_supervise = has_supervise;
    }

    fn child_spawned(&mut self, owner: Owner, id: ChildId, child: Child, out: &mut Vec<Effect>) {
        assert!(!self.children.contains_key(&id), "a child number is used once");
        let Some(entry) = self.owners.get_mut(&owner) else {
            // The owner ended during the spawn: nothing outlives its owner.
            out.push(Effect::StopChild { child: id, owner_failed: true });
            return;
        };
        entry.children.push(id);
        let waits_for_another = entry.children.len() > 1;
        let is_running = entry.state == OwnerState::Running;
        self.children.insert(id, child);
        if !is_running && !waits_for_another {
            self.stop_next(owner, out);
        }
    }

    fn rank_failed(
        &mut self,
        id: ChildId,
        rank: u32,
        failure: FailureId,
        kind: FailureKind,
        now: Duration,
        out: &mut Vec<Effect>,
    ) {
        let Some(child) = self.children.get_mut(&id) else { return };
        let owner = child.owner;
        let entry = &self.owners[&owner];
        let is_ending = child.is_stopping || entry.state != OwnerState::Running;
        if !is_ending {
            child.note_reported(rank, failure);
        }
        if child.is_dead(rank) {
            return;
        }
        if is_ending {
            child.remove_rank(rank);
            return;
        }
        match child.policy().reaction(kind) {
            Reaction::Expected => child.remove_rank(rank),
            Reaction::Report => {
                child.remove_rank(rank);
                let has_supervise = entry.has_supervise;
                self.ledger.report(
                    failure,
                    owner,
                    EscalationReason::NoRestart,
                    has_supervise,
                    now,
                    out,
                );
            }
            Reaction::Restart => match child.begin_restart(rank, failure, now) {
                RestartDecision::Joined { is_new: false } => {}
                RestartDecision::Joined { is_new: true } => {
                    self.ledger.restart_begun(failure, owner)
                }
                RestartDecision::Start(ranks) => {
                    self.ledger.restart_begun(failure, owner);
                    out.push(Effect::Restart { child: id, ranks });
                }
                RestartDecision::Exceeded => {
                    let has_supervise = entry.has_supervise;
                    self.ledger.report(
                        failure,
                        owner,
                        EscalationReason::TooManyRestarts,
                        has_supervise,
                        now,
                        out,
                    );
                }
            },
        }
    }

    fn restart_done(
        &mut self,
        id: ChildId,
        rank: u32,
        ok: bool,
        now: Duration,
        out: &mut Vec<Effect>,
    ) {
        let Some(child) = self.children.get_mut(&id) else { return };
        let owner = child.owner;
        match child.restart_done(rank, ok, now) {
            RoundOutcome::Open => {}
            RoundOutcome::Again(ranks) => out.push(Effect::Restart { child: id, ranks }),
            RoundOutcome::Restarted(failures) => {
                for failure in failures {
                    self.ledger.round_ended(failure, owner, Outcome::Restarted, out);
                }
            }
            RoundOutcome::Exceeded(failures) => {
                let has_supervise = self.owners[&owner].has_supervise;
                for failure in failures {
                    let why = EscalationReason::TooManyRestarts;
                    self.ledger.report(failure, owner, why, has_supervise, now, out);
                    self.ledger.round_ended(failure, owner, Outcome::Overtaken, out);
                }
            }
        }
    }

    fn child_stopping(&mut self, id: ChildId, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(&id) else { return };
        child.is_stopping = true;
        let owner = child.owner;
        for failure in child.abandon_rounds() {
            self.ledger.round_ended(failure, owner, Outcome::Overtaken, out);
        }
    }

    fn child_stopped(&mut self, id: ChildId, out: &mut Vec<Effect>) {
        self.child_stopping(id, out);
        let Some(child) = self.children.remove(&id) else { return };
        let entry = self.owners.get_mut(&child.owner).expect("a child is removed with its owner");
        if let Some(at) = entry.children.iter().rposition(|other| *other == id) {
            entry.children.remove(at);
        }
        if entry.state != OwnerState::Running {
            self.stop_next(child.owner, out);
        }
    }

    fn owner_failed(&mut self, owner: Owner, out: &mut Vec<Effect>) {
        self.begin_end(owner, OwnerState::Failed, out);
        // The owner's own failure propagates; these would only repeat it.
        self.ledger.settle_all(owner, Outcome::Overtaken, out);
    }

    fn owner_stopping(&mut self, owner: Owner, out: &mut Vec<Effect>) {
        if self.owners.get(&owner).is_none_or(|entry| entry.state != OwnerState::Running) {
            return;
        }
        // An orderly stop does not hide failures: those without an observer propagate now.
        for (failure, why) in self.ledger.unobserved(owner) {
            self.propagate(failure, owner, why, out);
        }
        if self.owners[&owner].state == OwnerState::Running {
            self.begin_end(owner, OwnerState::Stopping, out);
        }
    }

    fn owner_stopped(&mut self, owner: Owner, out: &mut Vec<Effect>) {
        for (failure, why) in self.ledger.undecided(owner) {
            self.propagate(failure, owner, why, out);
        }
        self.ledger.settle_all(owner, Outcome::Overtaken, out);
        let Some(entry) = self.owners.remove(&owner) else { return };
        for id in entry.children.into_iter().rev() {
            let child = self.children.remove(&id).expect("an owner lists only what it owns");
            if !child.is_stopping {
                out.push(Effect::StopChild { child: id, owner_failed: true });
            }
        }
    }

    fn begin_end(&mut self, owner: Owner, state: OwnerState, out: &mut Vec<Effect>) {
        let Some(entry) = self.owners.get_mut(&owner) else { return };
        let was_running = entry.state == OwnerState::Running;
        entry.state = state;
        let ids = entry.children.clone();
        for id in ids {
            let child = self.children.get_mut(&id).expect("an owner lists only what it owns");
            for failure in child.abandon_rounds() {
                self.ledger.round_ended(failure, owner, Outcome::Overtaken, out);
            }
        }
        if was_running {
            self.stop_next(owner, out);
        }
    }

    /// Stops the youngest child of a stopping owner; the next one follows when it has stopped.
    fn stop_next(&mut self, owner: Owner, out: &mut Vec<Effect>) {
        let entry = &self.owners[&owner];
        let owner_failed = entry.state == OwnerState::Failed;
        let Some(id) = entry.children.last().copied() else {
            out.push(Effect::OwnerDone { owner });
            return;
        };
        let child = self.children.get_mut(&id).expect("an owner lists only what it owns");
        if !child.is_stopping {
            child.is_stopping = true;
            out.push(Effect::StopChild { child: id, owner_failed });
        }
    }

    /// Propagates a failure that was neither observed nor handled at this owner.
    fn propagate(
        &mut self,
        failure: FailureId,
        owner: Owner,
        why: EscalationReason,
        out: &mut Vec<Effect>,
    ) {
        if !self.ledger.is_open(failure, owner) {
            return;
        }
        if owner == ROOT {
            // Its parts may be reported separately; the program is notified once.
            if self.ledger.notify_program(failure) {
                out.push(Effect::Root { failure, why });
            }
            self.ledger.settle((failure, owner), Outcome::Root, out);
        } else {
            out.push(Effect::FailOwner { owner, failure, why });
            self.ledger.settle((failure, owner), Outcome::FailedOwner, out);
            self.owner_failed(owner, out);
        }
    }

    fn propagate_overdue(&mut self, now: Duration, out: &mut Vec<Effect>) {
        let before = self.ledger.next_deadline();
        for (failure, owner, why) in self.ledger.overdue(now) {
            self.propagate(failure, owner, why, out);
        }
        let next = self.ledger.next_deadline();
        if let Some(at) = next
            && next != before
        {
            out.push(Effect::WakeAt(at));
        }
    }
}
