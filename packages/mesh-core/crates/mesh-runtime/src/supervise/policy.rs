//! Restart policies of children, and their rate limits.

use super::FailureId;
use std::collections::VecDeque;
use std::time::Duration;

/// The kinds of exit after which a rank is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Restart {
    /// None, and every exit is reported to the owner: the mesh has lost a rank.
    #[default]
    Never,
    /// None; a normal exit is expected, any other exit is reported to the owner.
    Temporary,
    /// Crashes and deaths; a normal exit is expected.
    Transient,
    /// All.
    Permanent,
}

/// The ranks that are restarted after one has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// The failed rank.
    #[default]
    OneForOne,
    /// All ranks of the child.
    OneForAll,
}

/// The policy for a failed rank of a child, which applies before its owner is notified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The kinds of exit after which a rank is restarted.
    pub restart: Restart,
    /// The ranks that are restarted with it.
    pub scope: Scope,
    /// Maximum number of failures repaired within `period`; the next one is passed to the owner.
    pub intensity_max: u32,
    /// The window in which failures are counted.
    pub period: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restart: Restart::Never,
            scope: Scope::OneForOne,
            intensity_max: 3,
            period: Duration::from_secs(60),
        }
    }
}

/// How a rank ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FailureKind {
    /// The actor raised an exception while no caller was waiting.
    Crash,
    /// The actor or its process exited without a request.
    Exit {
        /// Whether the exit was regular: status 0, no signal.
        normal: bool,
    },
    /// The process or its host has died.
    ProcDied,
}

/// The reaction of a policy to the end of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reaction {
    /// The end is not a failure: the rank is removed.
    Expected,
    /// The rank is restarted.
    Restart,
    /// The owner decides.
    Report,
}

impl Policy {
    pub(super) fn reaction(&self, kind: FailureKind) -> Reaction {
        let is_normal = matches!(kind, FailureKind::Exit { normal: true });
        match (self.restart, is_normal) {
            (Restart::Permanent, _) | (Restart::Transient, false) => Reaction::Restart,
            (Restart::Transient | Restart::Temporary, true) => Reaction::Expected,
            (Restart::Temporary, false) | (Restart::Never, _) => Reaction::Report,
        }
    }
}

/// The recent failures for which a child was repaired; never more than its policy allows.
#[derive(Debug, Default)]
pub(super) struct Intensity {
    charged: VecDeque<(Duration, FailureId)>,
}

impl Intensity {
    /// Counts a failure, or refuses it because the limit is reached.
    ///
    /// A failure that affects several ranks (a dead host) counts once; a restart that has to be
    /// retried (`is_retry`) counts again.
    pub(super) fn charge(
        &mut self,
        policy: &Policy,
        failure: FailureId,
        is_retry: bool,
        now: Duration,
    ) -> bool {
        while self.charged.front().is_some_and(|(at, _)| *at + policy.period <= now) {
            self.charged.pop_front();
        }
        if !is_retry && self.charged.iter().any(|(_, charged)| *charged == failure) {
            return true;
        }
        if self.charged.len() >= policy.intensity_max as usize {
            return false;
        }
        self.charged.push_back((now, failure));
        true
    }
}
