//! Inputs and outputs of a supervisor.

use super::policy::{FailureKind, Policy};
use mesh_wire::id::PortId;
use std::time::Duration;

/// An actor of this process by its port; [`ROOT`] is the program itself.
pub type Owner = PortId;

/// The owner without an owner: the program that started everything.
pub const ROOT: Owner = PortId::NONE;

/// A mesh that has an owner, numbered by the process of the owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChildId(pub u64);

/// One incident, with the same number in all processes that learn of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FailureId(pub u64);

/// The decision of an owner's `__supervise__` about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Verdict {
    /// The failure is handled.
    Handled,
    /// The failure has to be handled elsewhere.
    Unhandled,
    /// `__supervise__` itself failed.
    Raised,
}

/// The reason why a failure is passed to an owner instead of being repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum EscalationReason {
    /// The policy of the child does not restart after this kind of failure.
    NoRestart,
    /// The child has reached the maximum number of repairs of its policy.
    TooManyRestarts,
    /// The owner's `__supervise__` raised.
    SuperviseRaised,
}

/// The outcome of a failure for an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// A caller received it.
    Observed,
    /// The owner's `__supervise__` handled it.
    Handled,
    /// Everything that it affected was restarted.
    Restarted,
    /// The owner failed because of it; it continues at the owner's owner.
    FailedOwner,
    /// It reached the program.
    Root,
    /// The failed rank was being stopped, or its owner was already failing for another reason.
    Overtaken,
}

/// An input of a supervisor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An actor that may own meshes has started.
    OwnerStarted {
        /// The actor.
        owner: Owner,
        /// Whether it has `__supervise__`.
        has_supervise: bool,
    },
    /// An owner has spawned a mesh.
    ChildSpawned {
        /// The owner.
        owner: Owner,
        /// The mesh.
        child: ChildId,
        /// Its size.
        ranks: u32,
        /// The policy for failures of its ranks.
        policy: Policy,
    },
    /// A rank ended without being stopped.
    ///
    /// All ranks that one failure affects have its number and are reported together.
    RankFailed {
        /// The mesh.
        child: ChildId,
        /// The rank that ended.
        rank: u32,
        /// The failure.
        failure: FailureId,
        /// How it ended.
        kind: FailureKind,
    },
    /// A waiting caller has received the failure.
    Observed {
        /// The failure.
        failure: FailureId,
    },
    /// `__supervise__` has returned. Replies to [`Effect::CallSupervise`].
    Handled {
        /// The failure.
        failure: FailureId,
        /// The owner whose `__supervise__` was called.
        owner: Owner,
        /// The decision.
        verdict: Verdict,
    },
    /// The restart of a rank has succeeded or failed.
    ///
    /// Replies to [`Effect::Restart`] for each rank; also reports a rank that the owner replaced.
    RestartDone {
        /// The mesh.
        child: ChildId,
        /// The rank.
        rank: u32,
        /// Whether the restart succeeded.
        ok: bool,
    },
    /// The owner stops a mesh: the ends of its ranks are expected.
    ChildStopping {
        /// The mesh.
        child: ChildId,
    },
    /// All parts of a mesh have stopped. Replies to [`Effect::StopChild`].
    ChildStopped {
        /// The mesh.
        child: ChildId,
    },
    /// An owner has failed.
    OwnerFailed {
        /// The actor.
        owner: Owner,
    },
    /// An owner has begun to stop.
    OwnerStopping {
        /// The actor.
        owner: Owner,
    },
    /// All parts of an owner have stopped.
    OwnerStopped {
        /// The actor.
        owner: Owner,
    },
    /// Time has passed. Replies to [`Effect::WakeAt`].
    Tick,
}

/// An output of a supervisor, which the driver carries out.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Restart these ranks: stop the remains of each, then start it again.
    Restart {
        /// The mesh.
        child: ChildId,
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Call `__supervise__` of the owner.
    CallSupervise {
        /// The owner.
        owner: Owner,
        /// The failure.
        failure: FailureId,
        /// Why it is not repaired.
        why: EscalationReason,
    },
    /// The owner fails because of this failure: the driver notifies the owner's owner.
    ///
    /// Its meshes are stopped as after [`Event::OwnerFailed`].
    FailOwner {
        /// The owner that fails.
        owner: Owner,
        /// The failure.
        failure: FailureId,
        /// Why it is not repaired.
        why: EscalationReason,
    },
    /// The failure was neither observed nor handled: the program ends.
    Root {
        /// The failure.
        failure: FailureId,
        /// Why it is not repaired.
        why: EscalationReason,
    },
    /// Stop a mesh because its owner ends.
    StopChild {
        /// The mesh.
        child: ChildId,
        /// Whether the owner failed: queued messages are then dropped, not drained.
        owner_failed: bool,
    },
    /// Everything that a stopping owner owned has stopped: it may clean up now.
    OwnerDone {
        /// The owner.
        owner: Owner,
    },
    /// A failure has reached its outcome for an owner; emitted exactly once for each failure.
    Settled {
        /// The failure.
        failure: FailureId,
        /// The owner.
        owner: Owner,
        /// The outcome.
        outcome: Outcome,
    },
    /// Send [`Event::Tick`] at this time, or later.
    WakeAt(Duration),
}
