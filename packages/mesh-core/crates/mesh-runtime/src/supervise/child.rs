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
    /// Ranks that ended and are not being brought back.
    dead: BTreeSet<u32>,
    /// Restarts under way: by rank when each rank is on its own, else one under 0.
    rounds: BTreeMap<u32, Round>,
    intensity: Intensity,
}

/// Ranks that are being brought back together, and the failures that this mends.
#[derive(Debug)]
struct Round {
    /// Not back yet.
    waiting: BTreeSet<u32>,
    /// All that the round restarts.
    ranks: Vec<u32>,
    failures: Vec<FailureId>,
    /// Something failed meanwhile: all of it has to be done again.
    is_spoiled: bool,
}

/// What comes of a failure that the policy wants mended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mending {
    /// A restart that is under way covers it.
    Joined {
        /// Whether the restart did not know this failure yet.
        is_new: bool,
    },
    /// These ranks are to be restarted.
    Start(Vec<u32>),
    /// Too many lately: the owner decides.
    Exceeded,
}

/// What comes of the end of a restart.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// Other ranks of the round are not back yet, or no restart was under way.
    Open,
    /// All back: these failures are mended.
    Mended(Vec<FailureId>),
    /// These ranks are to be restarted once more.
    Again(Vec<u32>),
    /// Too many lately: the owner decides about these failures.
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
        }
    }

    /// The actor that owns it.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How many ranks it was spawned with.
    pub fn rank_count(&self) -> u32 {
        self.ranks
    }

    /// Whether it has been told to stop.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Ranks that ended and are not being brought back, in order.
    pub fn dead_ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.dead.iter().copied()
    }

    /// Ranks that are being restarted.
    pub fn restarting_ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.rounds.values().flat_map(|round| round.waiting.iter().copied())
    }

    pub(super) fn is_dead(&self, rank: u32) -> bool {
        rank >= self.ranks || self.dead.contains(&rank)
    }

    pub(super) fn remove_rank(&mut self, rank: u32) {
        self.dead.insert(rank);
    }

    /// Brings a failed rank back, unless the limit is reached.
    pub(super) fn mend(&mut self, rank: u32, failure: FailureId, now: Duration) -> Mending {
        if let Some(round) = self.rounds.get_mut(&round_of(&self.policy, rank)) {
            if !round.waiting.contains(&rank) {
                round.is_spoiled = true;
                self.dead.insert(rank);
            }
            let is_new = !round.failures.contains(&failure);
            if is_new {
                round.failures.push(failure);
            }
            return Mending::Joined { is_new };
        }
        if !self.intensity.charge(&self.policy, failure, false, now) {
            self.dead.insert(rank);
            return Mending::Exceeded;
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
        Mending::Start(ranks)
    }

    /// A rank is back, or could not be brought back.
    pub(super) fn restart_done(&mut self, rank: u32, ok: bool, now: Duration) -> RoundEnd {
        let key = round_of(&self.policy, rank);
        let Some(round) = self.rounds.get_mut(&key) else {
            // The owner replaced a rank that was given up.
            if ok && rank < self.ranks {
                self.dead.remove(&rank);
            }
            return RoundEnd::Open;
        };
        if !round.waiting.remove(&rank) {
            return RoundEnd::Open;
        }
        round.is_spoiled |= !ok;
        if !ok {
            self.dead.insert(rank);
        }
        if !round.waiting.is_empty() {
            return RoundEnd::Open;
        }
        let mut round = self.rounds.remove(&key).expect("it was looked up under this key");
        if !round.is_spoiled {
            return RoundEnd::Mended(round.failures);
        }
        let last = *round.failures.last().expect("a round begins with a failure");
        if !self.intensity.charge(&self.policy, last, true, now) {
            return RoundEnd::Exceeded(round.failures);
        }
        for restarted in &round.ranks {
            self.dead.remove(restarted);
        }
        let ranks = round.ranks.clone();
        round.waiting = ranks.iter().copied().collect();
        round.is_spoiled = false;
        self.rounds.insert(key, round);
        RoundEnd::Again(ranks)
    }

    /// Ends all restarts, because the child is going away; returns the failures left unmended.
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
