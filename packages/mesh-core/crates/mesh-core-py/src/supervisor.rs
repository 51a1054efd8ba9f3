//! Python binding of the supervision tree of this process.

use crate::engine::PyEngine;
use crate::engine_backend::EngineBackend;
use mesh_runtime::supervise::{
    ChildId, Config, Effect, EscalationReason, Event, FailureId, FailureKind, Outcome, Owner,
    Policy, Restart, Scope, Supervisor, Verdict,
};
use mesh_wire::id::PortId;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An action to carry out: its name, two ids (an owner, child or failure each), a text, and ranks.
type Action = (&'static str, u64, u64, String, Vec<u32>);

/// The supervision tree: the meshes that actors of this process own, and their failures.
#[pyclass(frozen, name = "Supervisor", module = "mesh_core._core")]
pub(crate) struct PySupervisor {
    tree: Mutex<Supervisor>,
    engine: EngineBackend,
}

#[pymethods]
impl PySupervisor {
    #[new]
    fn new(failure_grace_s: f64, engine: &PyEngine) -> PyResult<Self> {
        let failure_grace = Duration::try_from_secs_f64(failure_grace_s)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let tree = Supervisor::new(Config { failure_grace, ..Config::default() });
        Ok(Self { tree: Mutex::new(tree), engine: engine.backend().clone() })
    }

    fn owner_started(&self, owner: u64, has_supervise: bool) -> Vec<Action> {
        self.step(Event::OwnerStarted { owner: owner_of(owner), has_supervise })
    }

    #[expect(clippy::too_many_arguments, reason = "a policy, flat, for Python")]
    fn child_spawned(
        &self,
        owner: u64,
        child: u64,
        ranks: u32,
        restart: &str,
        scope: &str,
        intensity_max: u32,
        period_s: f64,
    ) -> PyResult<Vec<Action>> {
        let restart = match restart {
            "never" => Restart::Never,
            "temporary" => Restart::Temporary,
            "transient" => Restart::Transient,
            "permanent" => Restart::Permanent,
            other => return Err(PyValueError::new_err(format!("unknown restart {other:?}"))),
        };
        let scope = match scope {
            "one_for_one" => Scope::OneForOne,
            "one_for_all" => Scope::OneForAll,
            other => return Err(PyValueError::new_err(format!("unknown scope {other:?}"))),
        };
        let period = Duration::try_from_secs_f64(period_s)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let policy = Policy { restart, scope, intensity_max, period };
        let (owner, child) = (owner_of(owner), ChildId(child));
        Ok(self.step(Event::ChildSpawned { owner, child, ranks, policy }))
    }

    fn rank_failed(
        &self,
        child: u64,
        rank: u32,
        failure: u64,
        kind: &str,
    ) -> PyResult<Vec<Action>> {
        let kind = match kind {
            "crash" => FailureKind::Crash,
            "exit" => FailureKind::Exit { normal: true },
            "abnormal_exit" => FailureKind::Exit { normal: false },
            "proc_died" => FailureKind::ProcDied,
            other => return Err(PyValueError::new_err(format!("unknown failure {other:?}"))),
        };
        let (child, failure) = (ChildId(child), FailureId(failure));
        Ok(self.step(Event::RankFailed { child, rank, failure, kind }))
    }

    fn observed(&self, failure: u64) -> Vec<Action> {
        self.step(Event::Observed { failure: FailureId(failure) })
    }

    fn handled(&self, failure: u64, owner: u64, verdict: &str) -> PyResult<Vec<Action>> {
        let verdict = match verdict {
            "handled" => Verdict::Handled,
            "unhandled" => Verdict::Unhandled,
            "raised" => Verdict::Raised,
            other => return Err(PyValueError::new_err(format!("unknown verdict {other:?}"))),
        };
        let (failure, owner) = (FailureId(failure), owner_of(owner));
        Ok(self.step(Event::Handled { failure, owner, verdict }))
    }

    fn restart_done(&self, child: u64, rank: u32, ok: bool) -> Vec<Action> {
        self.step(Event::RestartDone { child: ChildId(child), rank, ok })
    }

    fn child_stopping(&self, child: u64) -> Vec<Action> {
        self.step(Event::ChildStopping { child: ChildId(child) })
    }

    fn child_stopped(&self, child: u64) -> Vec<Action> {
        self.step(Event::ChildStopped { child: ChildId(child) })
    }

    fn owner_failed(&self, owner: u64) -> Vec<Action> {
        self.step(Event::OwnerFailed { owner: owner_of(owner) })
    }

    fn owner_stopping(&self, owner: u64) -> Vec<Action> {
        self.step(Event::OwnerStopping { owner: owner_of(owner) })
    }

    fn owner_stopped(&self, owner: u64) -> Vec<Action> {
        self.step(Event::OwnerStopped { owner: owner_of(owner) })
    }

    fn tick(&self) -> Vec<Action> {
        self.step(Event::Tick)
    }

    /// Seconds until the next `tick` is due; `None` if none is.
    fn due_in_s(&self) -> Option<f64> {
        let due = self.lock().next_deadline()?;
        Some(due.saturating_sub(self.engine.clock()).as_secs_f64())
    }

    /// How a mesh restarts, such as "permanent"; `None` if the mesh is not known.
    fn restart_of(&self, child: u64) -> Option<&'static str> {
        Some(match self.lock().child(ChildId(child))?.policy().restart {
            Restart::Never => "never",
            Restart::Temporary => "temporary",
            Restart::Transient => "transient",
            Restart::Permanent => "permanent",
        })
    }

    fn is_new(&self, child: u64, rank: u32, failure: u64) -> bool {
        self.lock().is_new(ChildId(child), rank, FailureId(failure))
    }

    fn was_received(&self, failure: u64) -> bool {
        self.lock().was_received(FailureId(failure))
    }

    fn notify_program(&self, failure: u64) -> bool {
        self.lock().notify_program(FailureId(failure))
    }

    fn lose_host(&self, failure: u64) -> bool {
        self.lock().lose_host(FailureId(failure))
    }

    fn children_of(&self, owner: u64) -> Vec<u64> {
        self.lock().children_of(owner_of(owner)).iter().map(|child| child.0).collect()
    }

    fn open_count(&self) -> usize {
        self.lock().open_count()
    }
}

impl PySupervisor {
    fn step(&self, event: Event) -> Vec<Action> {
        let mut effects = Vec::new();
        self.lock().step(event, self.engine.clock(), &mut effects);
        effects.into_iter().filter_map(action_of).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Supervisor> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner_of(port: u64) -> Owner {
    PortId(port)
}

fn action_of(effect: Effect) -> Option<Action> {
    Some(match effect {
        Effect::Restart { child, ranks } => ("restart", child.0, 0, String::new(), ranks),
        Effect::CallSupervise { owner, failure, why } => {
            ("call_supervise", owner.0, failure.0, reason_text(why), Vec::new())
        }
        Effect::FailOwner { owner, failure, why } => {
            ("fail_owner", owner.0, failure.0, reason_text(why), Vec::new())
        }
        Effect::Root { failure, why } => ("root", 0, failure.0, reason_text(why), Vec::new()),
        Effect::StopChild { child, owner_failed } => {
            ("stop_child", child.0, u64::from(owner_failed), String::new(), Vec::new())
        }
        Effect::OwnerDone { owner } => ("owner_done", owner.0, 0, String::new(), Vec::new()),
        Effect::Settled { failure, owner, outcome } => {
            ("settled", owner.0, failure.0, outcome_text(outcome), Vec::new())
        }
        // The driver queries `due_in_s` after each step.
        Effect::WakeAt(_) => return None,
    })
}

fn reason_text(why: EscalationReason) -> String {
    format!("{why:?}")
}

fn outcome_text(outcome: Outcome) -> String {
    format!("{outcome:?}")
}
