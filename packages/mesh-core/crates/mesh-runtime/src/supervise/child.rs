//! One mesh that an actor of this process owns, and the state of its ranks.

use super::policy::{Intensity, Policy, Scope};
use super::{FailureId, Owner};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A mesh of actors or processes that has an owner.
#[derive(Debug)]
pub struct Child {
    pub(super) owner: Owner,
    pub(super) is_stopping: bool,
    ranks: u32,
    policy: Policy,
    /// Ranks that ended and are not being restarted.
    dead: BTreeSet<u32>,
    /// Restarts in progress: by rank if ranks restart individually, otherwise one with key 0.
    rounds: BTreeMap<u32, Round>,
    intensity: Intensity,
    /// The last failure of each rank that was reported before the mesh began to stop.
    reported: BTreeMap<u32, FailureId>,
}

/// Ranks that are being restarted together, and the failures that this repairs.
#[derive(Debug)]
struct Round {
    /// Ranks that are not back yet.
    waiting: BTreeSet<u32>,
    /// All ranks that the round restarts.
    ranks: Vec<u32>,
    failures: Vec<FailureId>,
    /// A rank failed during the round, so the whole round has to be repeated.
    is_spoiled: bool,
}

/// The consequence of a failure that the policy wants to repair.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RestartDecision {
    /// A restart in progress covers the failure.
    Joined {
        /// Whether the failure is new to the restart.
        is_new: bool,
    },
    /// These ranks have to be restarted.
    Start(Vec<u32>),
    /// Too many recent failures: the owner decides.
    Exceeded,
}

/// The consequence of the end of a restart.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RoundOutcome {
    /// Other ranks of the round are not back yet, or no restart was in progress.
    Open,
    /// All ranks are back: these failures are repaired.
    Restarted(Vec<FailureId>),
    /// These ranks have to be restarted again.
    Again(Vec<u32>),
    /// Too many recent failures: the owner decides about these failures.
    Exceeded(Vec<FailureId>),
}

impl Child {
    pub(super) fn new(owner: Owner, ranks: u32, policy: Policy) -> Self {
        Self {
            owner,
            is_stopping: false,
            ranks,
            policy,
            dead: BTreeSet::new(),
            rounds: BTreeMap::new(),
            intensity: Intensity::default(),
            reported: BTreeMap::new(),
        }
    }

    /// Returns the actor that owns the mesh.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the policy of the mesh.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the number of ranks at spawn time.
    pub fn rank_count(&self) -> u32 {
        self.ranks
    }

    /// Whether the mesh is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Returns the ranks that ended and are not being restarted, in order.
    pub fn dead_ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.dead.iter().copied()
    }

    /// Returns the ranks that are being restarted.
    pub fn restarting_ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.rounds.values().flat_map(|round| round.waiting.iter().copied())
    }

    /// Whether this was the last failure of the rank that was reported before the mesh began to
    /// stop.
    pub(super) fn is_reported(&self, rank: u32, failure: FailureId) -> bool {
        self.reported.get(&rank) == Some(&failure)
    }

    pub(super) fn note_reported(&mut self, rank: u32, failure: FailureId) {
        self.reported.insert(rank, failure);
    }

    pub(super) fn is_dead(&self, rank: u32) -> bool {
        rank >= self.ranks || self.dead.contains(&rank)
    }

    pub(super) fn remove_rank(&mut self, rank: u32) {
        self.dead.insert(rank);
    }

    /// Restarts a failed rank, unless the limit is reached.
    pub(super) fn begin_restart(
        &mut self,
        rank: u32,
        failure: FailureId,
        now: Duration,
    ) -> RestartDecision {
        if let Some(round) = self.rounds.get_mut(&round_of(&self.policy, rank)) {
            if !round.waiting.contains(&rank) {
                round.is_spoiled = true;
                self.dead.insert(rank);
            }
            let is_new = !round.failures.contains(&failure);
            if is_new {
                round.failures.push(failure);
            }
            return RestartDecision::Joined { is_new };
        }
        if !self.intensity.charge(&self.policy, failure, false, now) {
            self.dead.insert(rank);
            return RestartDecision::Exceeded;
        }
        let ranks: Vec<u32> = match self.policy.scope {
            Scope::OneForOne => vec![rank],
            Scope::OneForAll => (0..self.ranks).collect(),
        };
        for restarted in &ranks {
            self.dead.remove(restarted);
        }
        let round = Round {
            waiting: ranks.iter().copied().collect(),
            ranks: ranks.clone(),
            failures: vec![failure],
            is_spoiled: false,
        };
        self.rounds.insert(round_of(&self.policy, rank), round);
        RestartDecision::Start(ranks)
    }

    /// Handles the end of the restart of a rank.
    pub(super) fn restart_done(&mut self, rank: u32, ok: bool, now: Duration) -> RoundOutcome {
        let key = round_of(&self.policy, rank);
        let Some(round) = self.rounds.get_mut(&key) else {
            // The owner replaced a rank that was not being restarted.
            if ok && rank < self.ranks {
                self.dead.remove(&rank);
            }
            return RoundOutcome::Open;
        };
        if !round.waiting.remove(&rank) {
            return RoundOutcome::Open;
        }
        round.is_spoiled |= !ok;
        if !ok {
            self.dead.insert(rank);
        }
        if !round.waiting.is_empty() {
            return RoundOutcome::Open;
        }
        let mut round = self.rounds.remove(&key).expect("it was looked up under this key");
        if !round.is_spoiled {
            return RoundOutcome::Restarted(round.failures);
        }
        let last = *round.failures.last().expect("a round begins with a failure");
        if !self.intensity.charge(&self.policy, last, true, now) {
            return RoundOutcome::Exceeded(round.failures);
        }
        for restarted in &round.ranks {
            self.dead.remove(restarted);
        }
        let ranks = round.ranks.clone();
        round.waiting = ranks.iter().copied().collect();
        round.is_spoiled = false;
        self.rounds.insert(key, round);
        RoundOutcome::Again(ranks)
    }

    /// Ends all restarts because the child is being stopped; returns the open failures.
    pub(super) fn abandon_rounds(&mut self) -> Vec<FailureId> {
        std::mem::take(&mut self.rounds).into_values().flat_map(|round| round.failures).collect()
    }
}

fn round_of(policy: &Policy, rank: u32) -> u32 {
    match policy.scope {
        Scope::OneForOne => rank,
        Scope::OneForAll => 0,
    }
}
