//! What a child does about its own failures, and how often it may.

use super::FailureId;
use std::collections::VecDeque;
use std::time::Duration;

/// Which ends of a rank bring it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Restart {
    /// None, and every end is reported to the owner: the mesh has lost a rank.
    #[default]
    Never,
    /// None; a normal exit is expected, anything else is reported to the owner.
    Temporary,
    /// Crashes and deaths; a normal exit is expected.
    Transient,
    /// All.
    Permanent,
}

/// Which ranks come back when one has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// The one that failed.
    #[default]
    OneForOne,
    /// All ranks of the child.
    OneForAll,
}

/// What is done about a failed rank of a child before its owner hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Which ends bring a rank back.
    pub restart: Restart,
    /// Which ranks come back with it.
    pub scope: Scope,
    /// How many failures may be mended within `period`; the next one goes to the owner.
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
    /// The actor raised where nobody was waiting.
    Crash,
    /// The actor or its process ended by itself.
    Exit {
        /// Whether it meant to: status 0, no signal.
        normal: bool,
    },
    /// The process is gone, or its host is.
    ProcDied,
}

/// What a policy makes of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reaction {
    /// Not a failure: the rank is removed.
    Expected,
    /// The rank is brought back.
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

/// The failures that a child was mended for lately; never more than its policy allows.
#[derive(Debug, Default)]
pub(super) struct Intensity {
    charged: VecDeque<(Duration, FailureId)>,
}

impl Intensity {
    /// Counts a failure, or refuses because the limit is reached.
    ///
    /// One failure that takes several ranks (a host that died) counts once; a restart that has to
    /// be tried again (`is_retry`) counts again.
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
