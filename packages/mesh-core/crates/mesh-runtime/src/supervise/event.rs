//! What a supervisor is told, and what it wants done.

use super::policy::{FailureKind, Policy};
use mesh_wire::id::PortId;
use std::time::Duration;

/// An actor of this process by its port; [`ROOT`] is the program itself.
pub type Owner = PortId;

/// The owner that nobody owns: the program that started everything.
pub const ROOT: Owner = PortId::NONE;

/// A mesh that has an owner, numbered by the process of the owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChildId(pub u64);

/// One thing that went wrong, the same number wherever it is heard of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FailureId(pub u64);

/// What an owner's `__supervise__` made of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Verdict {
    /// It is dealt with.
    Handled,
    /// Somebody else has to.
    Unhandled,
    /// It failed itself.
    Raised,
}

/// Why a failure goes to an owner instead of being mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Why {
    /// The policy of the child does not restart after such an end.
    NoRestart,
    /// The child was mended as often as its policy allows.
    TooManyRestarts,
    /// The owner's `__supervise__` raised.
    SuperviseRaised,
}

/// How a failure ended for an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// A caller was given it.
    Observed,
    /// The owner's `__supervise__` dealt with it.
    Handled,
    /// All that it took was brought back.
    Restarted,
    /// The owner failed of it; it goes on under the owner's owner.
    FailedOwner,
    /// It reached the program.
    Root,
    /// What failed was being stopped, or its owner was already failing of something else.
    Overtaken,
}

/// What a supervisor is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An actor that may own meshes has started.
    OwnerStarted {
        /// The actor.
        owner: Owner,
        /// Whether it has `__supervise__`.
        has_supervise: bool,
    },
    /// An owner asked for a mesh.
    ChildSpawned {
        /// Who asked.
        owner: Owner,
        /// The mesh.
        child: ChildId,
        /// Its size.
        ranks: u32,
        /// What to do when a rank fails.
        policy: Policy,
    },
    /// A rank ended without having been told to. All ranks that one failure takes carry its number
    /// and are reported together.
    RankFailed {
        /// The mesh.
        child: ChildId,
        /// The rank that ended.
        rank: u32,
        /// What went wrong.
        failure: FailureId,
        /// How it ended.
        kind: FailureKind,
    },
    /// A waiting caller has been given the failure.
    Observed {
        /// What went wrong.
        failure: FailureId,
    },
    /// `__supervise__` has returned. Answers [`Effect::AskOwner`].
    Handled {
        /// What went wrong.
        failure: FailureId,
        /// Who was asked.
        owner: Owner,
        /// The decision.
        verdict: Verdict,
    },
    /// A rank is back, or could not be brought back. Answers [`Effect::Restart`] for each rank;
    /// also tells of a rank that the owner replaced.
    RestartDone {
        /// The mesh.
        child: ChildId,
        /// The rank.
        rank: u32,
        /// Whether it is back.
        ok: bool,
    },
    /// The owner stops a mesh: its ranks end because they were told to.
    ChildStopping {
        /// The mesh.
        child: ChildId,
    },
    /// Nothing of a mesh is left. Answers [`Effect::StopChild`].
    ChildStopped {
        /// The mesh.
        child: ChildId,
    },
    /// An owner has failed.
    OwnerFailed {
        /// The actor.
        owner: Owner,
    },
    /// An owner was told to stop.
    OwnerStopping {
        /// The actor.
        owner: Owner,
    },
    /// Nothing of an owner is left.
    OwnerStopped {
        /// The actor.
        owner: Owner,
    },
    /// Time has passed. Answers [`Effect::WakeAt`].
    Tick,
}

/// What a supervisor wants done.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Bring these ranks back: stop what is left of them, then start them anew.
    Restart {
        /// The mesh.
        child: ChildId,
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Call `__supervise__` of the owner.
    AskOwner {
        /// Whom.
        owner: Owner,
        /// What went wrong.
        failure: FailureId,
        /// Why it is not mended.
        why: Why,
    },
    /// The owner fails of this: the driver tells the owner's owner. What it owns is stopped as
    /// after [`Event::OwnerFailed`].
    FailOwner {
        /// Who fails.
        owner: Owner,
        /// What went wrong.
        failure: FailureId,
        /// Why it is not mended.
        why: Why,
    },
    /// Nobody took the failure: the program ends.
    Root {
        /// What went wrong.
        failure: FailureId,
        /// Why it is not mended.
        why: Why,
    },
    /// Stop a mesh because its owner ends.
    StopChild {
        /// The mesh.
        child: ChildId,
        /// Whether the owner failed: what is queued is then dropped, not drained.
        owner_failed: bool,
    },
    /// All that an ending owner owned is stopped: it may clean up now.
    OwnerDone {
        /// Who.
        owner: Owner,
    },
    /// A failure has come to its end for an owner; exactly once for each that was taken in.
    Settled {
        /// What went wrong.
        failure: FailureId,
        /// Whose it was.
        owner: Owner,
        /// How it ended.
        outcome: Outcome,
    },
    /// Send [`Event::Tick`] at this time, or later.
    WakeAt(Duration),
}
