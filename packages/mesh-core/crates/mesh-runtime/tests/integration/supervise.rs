//! Supervision: propagation of failures, restarts, and the order of stopping.

use mesh_runtime::supervise::{
    ChildId, Config, Effect, EscalationReason, Event, FailureId, FailureKind, Outcome, Owner,
    Policy, ROOT, Restart, Scope, Supervisor, Verdict,
};
use std::time::Duration;

const ACTOR: Owner = mesh_wire::id::PortId(20);
const MESH: ChildId = ChildId(1);
const OTHER: ChildId = ChildId(2);
const F1: FailureId = FailureId(101);
const F2: FailureId = FailureId(102);
const F3: FailureId = FailureId(103);
const GRACE: Duration = Duration::from_secs(1);
const CRASH: FailureKind = FailureKind::Crash;
const NORMAL: FailureKind = FailureKind::Exit { normal: true };

/// A supervisor, its clock, and its last effects.
struct Harness {
    supervisor: Supervisor,
    now: Duration,
}

impl Harness {
    fn new() -> Self {
        let supervisor = Supervisor::new(Config { failure_grace: GRACE, ..Config::default() });
        Self { supervisor, now: Duration::ZERO }
    }

    /// Creates an actor that owns two meshes of four ranks.
    fn with_owner(owner: Owner, has_supervise: bool, policy: Policy) -> Self {
        let mut harness = Self::new();
        harness.step(Event::OwnerStarted { owner, has_supervise });
        for child in [MESH, OTHER] {
            harness.step(Event::ChildSpawned { owner, child, ranks: 4, policy });
        }
        harness
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.supervisor.step(event, self.now, &mut out);
        out.retain(|effect| !matches!(effect, Effect::WakeAt(_)));
        out
    }

    fn fail(&mut self, child: ChildId, rank: u32, failure: FailureId) -> Vec<Effect> {
        self.step(Event::RankFailed { child, rank, failure, kind: CRASH })
    }

    fn restart_done(&mut self, rank: u32) -> Vec<Effect> {
        self.step(Event::RestartDone { child: MESH, rank, ok: true })
    }

    fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.step(Event::Tick)
    }
}

fn permanent(intensity_max: u32, scope: Scope) -> Policy {
    let period = Duration::from_secs(10);
    Policy { restart: Restart::Permanent, scope, intensity_max, period }
}

fn settled(failure: FailureId, owner: Owner, outcome: Outcome) -> Effect {
    Effect::Settled { failure, owner, outcome }
}

fn restart(ranks: &[u32]) -> Effect {
    Effect::Restart { child: MESH, ranks: ranks.to_vec() }
}

fn stop(child: ChildId, owner_failed: bool) -> Effect {
    Effect::StopChild { child, owner_failed }
}

fn call_supervise(failure: FailureId, why: EscalationReason) -> Effect {
    Effect::CallSupervise { owner: ACTOR, failure, why }
}

#[test]
fn an_unobserved_failure_terminates_the_program_after_the_grace_period() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    assert_eq!(harness.fail(MESH, 0, F1), []);
    assert_eq!(harness.supervisor.next_deadline(), Some(GRACE));
    assert_eq!(harness.pass(GRACE / 2), []);
    let root = Effect::Root { failure: F1, why: EscalationReason::NoRestart };
    assert_eq!(harness.pass(GRACE / 2), [root, settled(F1, ROOT, Outcome::Root)]);
    assert_eq!(harness.pass(GRACE), []);
}

#[test]
fn a_failure_that_a_caller_receives_does_not_propagate() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    harness.fail(MESH, 0, F1);
    harness.pass(GRACE / 2);
    let observed = [settled(F1, ROOT, Outcome::Observed)];
    assert_eq!(harness.step(Event::Observed { failure: F1 }), observed);
    assert_eq!(harness.pass(GRACE), []);
}

#[test]
fn a_caller_may_receive_a_failure_before_its_owner() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    harness.step(Event::Observed { failure: F1 });
    assert_eq!(harness.fail(MESH, 0, F1), [settled(F1, ROOT, Outcome::Observed)]);
}

#[test]
fn the_timer_is_requested_once_for_each_deadline() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    let mut out = Vec::new();
    let failed = |rank, failure| Event::RankFailed { child: MESH, rank, failure, kind: CRASH };
    harness.supervisor.step(failed(0, F1), Duration::ZERO, &mut out);
    harness.supervisor.step(failed(1, F2), GRACE / 2, &mut out);
    assert_eq!(out, [Effect::WakeAt(GRACE)]);
    harness.supervisor.step(Event::Tick, GRACE, &mut out);
    assert_eq!(out.last(), Some(&Effect::WakeAt(GRACE + GRACE / 2)));
}

#[test]
fn a_dead_process_is_one_failure_for_an_owner_of_several_meshes() {
    let mut harness = Harness::with_owner(ACTOR, true, Policy::default());
    assert_eq!(harness.fail(MESH, 2, F1), [call_supervise(F1, EscalationReason::NoRestart)]);
    assert_eq!(harness.fail(OTHER, 2, F1), []);
    let verdict = Event::Handled { failure: F1, owner: ACTOR, verdict: Verdict::Handled };
    assert_eq!(harness.step(verdict), [settled(F1, ACTOR, Outcome::Handled)]);
    assert_eq!(harness.fail(OTHER, 1, F1), [], "reported late, but the same failure");
}

#[test]
fn an_owner_that_does_not_handle_a_failure_fails_with_all_it_owns() {
    let mut harness = Harness::with_owner(ACTOR, true, Policy::default());
    harness.fail(MESH, 0, F1);
    harness.fail(MESH, 1, F2);
    let verdict = Event::Handled { failure: F1, owner: ACTOR, verdict: Verdict::Unhandled };
    assert_eq!(harness.step(verdict), [], "a caller may still be given it");
    let expected = [
        Effect::FailOwner { owner: ACTOR, failure: F1, why: EscalationReason::NoRestart },
        settled(F1, ACTOR, Outcome::FailedOwner),
        stop(OTHER, true),
        settled(F2, ACTOR, Outcome::Overtaken),
    ];
    assert_eq!(harness.pass(GRACE), expected);
    assert_eq!(harness.step(Event::ChildStopped { child: OTHER }), [stop(MESH, true)]);
    let done = [Effect::OwnerDone { owner: ACTOR }];
    assert_eq!(harness.step(Event::ChildStopped { child: MESH }), done);
    assert_eq!(harness.step(Event::OwnerFailed { owner: ACTOR }), []);
}

#[test]
fn an_unhandled_failure_that_a_caller_received_does_not_fail_the_owner() {
    let mut harness = Harness::with_owner(ACTOR, true, Policy::default());
    harness.step(Event::Observed { failure: F1 });
    assert_eq!(harness.fail(MESH, 0, F1), [call_supervise(F1, EscalationReason::NoRestart)]);
    let verdict = Event::Handled { failure: F1, owner: ACTOR, verdict: Verdict::Unhandled };
    assert_eq!(harness.step(verdict), [settled(F1, ACTOR, Outcome::Observed)]);
}

#[test]
fn an_owner_whose_supervise_raises_fails_at_once() {
    let mut harness = Harness::with_owner(ACTOR, true, Policy::default());
    harness.step(Event::Observed { failure: F1 });
    harness.fail(MESH, 0, F1);
    let raised = Event::Handled { failure: F1, owner: ACTOR, verdict: Verdict::Raised };
    let fail =
        Effect::FailOwner { owner: ACTOR, failure: F1, why: EscalationReason::SuperviseRaised };
    assert_eq!(harness.step(raised.clone()).first(), Some(&fail));
    assert_eq!(harness.step(raised), []);
}

#[test]
fn an_owner_without_supervise_has_the_grace_period_too() {
    let mut harness = Harness::with_owner(ACTOR, false, Policy::default());
    assert_eq!(harness.fail(MESH, 0, F1), []);
    let fail = Effect::FailOwner { owner: ACTOR, failure: F1, why: EscalationReason::NoRestart };
    assert_eq!(harness.pass(GRACE).first(), Some(&fail));
}

#[test]
fn the_policy_decides_which_exits_restart_a_rank() {
    let check = |policy: Restart, kind, expected: &str| {
        let policy = Policy { restart: policy, ..permanent(3, Scope::OneForOne) };
        let mut harness = Harness::with_owner(ACTOR, true, policy);
        let out = harness.step(Event::RankFailed { child: MESH, rank: 1, failure: F1, kind });
        let got = match out.as_slice() {
            [] => "removed",
            [Effect::Restart { .. }] => "restarted",
            [Effect::CallSupervise { .. }] => "reported",
            other => panic!("unexpected {other:?}"),
        };
        assert_eq!(got, expected, "{policy:?} after {kind:?}");
        let dead: Vec<u32> =
            harness.supervisor.child(MESH).expect("spawned").dead_ranks().collect();
        assert_eq!(dead.is_empty(), got == "restarted");
    };
    let status = FailureKind::Exit { normal: false };
    for (policy, on_normal, on_failure) in [
        (Restart::Permanent, "restarted", "restarted"),
        (Restart::Transient, "removed", "restarted"),
        (Restart::Temporary, "removed", "reported"),
        (Restart::Never, "reported", "reported"),
    ] {
        check(policy, NORMAL, on_normal);
        for kind in [CRASH, status, FailureKind::ProcDied] {
            check(policy, kind, on_failure);
        }
    }
}

#[test]
fn a_failed_rank_is_restarted_without_its_siblings() {
    let mut harness = Harness::with_owner(ROOT, false, permanent(3, Scope::OneForOne));
    assert_eq!(harness.fail(MESH, 1, F1), [restart(&[1])]);
    assert_eq!(harness.fail(MESH, 1, F2), [], "the restart under way covers it");
    assert_eq!(harness.fail(MESH, 3, F3), [restart(&[3])]);
    let restarted = [F1, F2].map(|failure| settled(failure, ROOT, Outcome::Restarted));
    assert_eq!(harness.restart_done(1), restarted);
    assert_eq!(harness.restart_done(3), [settled(F3, ROOT, Outcome::Restarted)]);
    assert_eq!(harness.pass(GRACE), []);
}

#[test]
fn all_ranks_restart_together_under_one_for_all() {
    let mut harness = Harness::with_owner(ROOT, false, permanent(3, Scope::OneForAll));
    assert_eq!(harness.fail(MESH, 1, F1), [restart(&[0, 1, 2, 3])]);
    assert_eq!(harness.fail(MESH, 2, F1), []);
    for rank in [0, 1, 2] {
        assert_eq!(harness.restart_done(rank), []);
    }
    assert_eq!(harness.fail(MESH, 0, F2), [], "back, and lost before the others are");
    assert_eq!(harness.restart_done(3), [restart(&[0, 1, 2, 3])]);
    for rank in [0, 1, 2] {
        assert_eq!(harness.restart_done(rank), []);
    }
    let restarted = [F1, F2].map(|failure| settled(failure, ROOT, Outcome::Restarted));
    assert_eq!(harness.restart_done(3), restarted);
}

#[test]
fn too_many_restarts_within_the_period_are_escalated_to_the_owner() {
    let mut harness = Harness::with_owner(ACTOR, true, permanent(2, Scope::OneForOne));
    for failure in [F1, F2] {
        assert_eq!(harness.fail(MESH, 0, failure), [restart(&[0])]);
        harness.restart_done(0);
    }
    assert_eq!(harness.fail(MESH, 0, F3), [call_supervise(F3, EscalationReason::TooManyRestarts)]);
    harness.restart_done(0);
    harness.now += Duration::from_secs(10);
    assert_eq!(harness.fail(MESH, 0, FailureId(104)), [restart(&[0])], "the window has moved on");
}

#[test]
fn a_failed_restart_is_retried_within_the_limit() {
    let mut harness = Harness::with_owner(ACTOR, true, permanent(2, Scope::OneForOne));
    let failed = Event::RestartDone { child: MESH, rank: 0, ok: false };
    assert_eq!(harness.fail(MESH, 0, F1), [restart(&[0])]);
    assert_eq!(harness.step(failed.clone()), [restart(&[0])]);
    assert_eq!(harness.step(failed), [call_supervise(F1, EscalationReason::TooManyRestarts)]);
}

#[test]
fn one_failure_of_many_ranks_counts_as_one_restart() {
    let mut harness = Harness::with_owner(ACTOR, true, permanent(1, Scope::OneForOne));
    for rank in 0..4 {
        assert_eq!(harness.fail(MESH, rank, F1), [restart(&[rank])]);
    }
    assert_eq!(harness.restart_done(0), []);
    assert_eq!(harness.fail(MESH, 0, F2), [call_supervise(F2, EscalationReason::TooManyRestarts)]);
}

#[test]
fn a_stopping_owner_stops_its_youngest_child_first_and_finishes_last() {
    let mut harness = Harness::with_owner(ACTOR, true, Policy::default());
    assert_eq!(harness.step(Event::OwnerStopping { owner: ACTOR }), [stop(OTHER, false)]);
    assert_eq!(harness.fail(OTHER, 0, F1), [], "it was told to end");
    assert_eq!(harness.step(Event::ChildStopped { child: OTHER }), [stop(MESH, false)]);
    let done = [Effect::OwnerDone { owner: ACTOR }];
    assert_eq!(harness.step(Event::ChildStopped { child: MESH }), done);
    assert_eq!(harness.step(Event::OwnerStopped { owner: ACTOR }), []);
    let late = Event::ChildSpawned {
        owner: ACTOR,
        child: ChildId(3),
        ranks: 1,
        policy: Policy::default(),
    };
    assert_eq!(harness.step(late), [stop(ChildId(3), true)], "nothing outlives its owner");
}

#[test]
fn a_program_that_exits_within_the_grace_period_reports_the_failure() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    harness.fail(MESH, 0, F1);
    let root = Effect::Root { failure: F1, why: EscalationReason::NoRestart };
    let expected = [root, settled(F1, ROOT, Outcome::Root), stop(OTHER, false)];
    assert_eq!(harness.step(Event::OwnerStopping { owner: ROOT }), expected);
}

#[test]
fn a_stopped_mesh_is_not_restarted() {
    let mut harness = Harness::with_owner(ROOT, false, permanent(3, Scope::OneForOne));
    harness.fail(MESH, 0, F1);
    let overtaken = [settled(F1, ROOT, Outcome::Overtaken)];
    assert_eq!(harness.step(Event::ChildStopping { child: MESH }), overtaken);
    assert_eq!(harness.fail(MESH, 1, F2), []);
    assert_eq!(harness.restart_done(0), []);
    assert_eq!(harness.step(Event::ChildStopped { child: MESH }), []);
    assert_eq!(harness.supervisor.children_of(ROOT), [OTHER]);
}

#[test]
fn a_replaced_rank_is_supervised_again() {
    let mut harness = Harness::with_owner(ACTOR, true, Policy::default());
    harness.fail(MESH, 0, F1);
    assert_eq!(harness.fail(MESH, 0, F2), [], "it is dead already");
    harness.restart_done(0);
    assert_eq!(harness.fail(MESH, 0, F3), [call_supervise(F3, EscalationReason::NoRestart)]);
}

#[test]
fn a_failure_is_new_until_it_is_received() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    assert!(harness.supervisor.is_new(MESH, 0, F1));
    harness.step(Event::Observed { failure: F1 });
    assert!(!harness.supervisor.is_new(MESH, 0, F1), "a caller has received it");
    harness.fail(MESH, 1, F2);
    assert!(!harness.supervisor.is_new(MESH, 1, F2), "it was reported before the stop");
    assert!(harness.supervisor.is_new(MESH, 2, F2), "of this rank it was not");
    harness.step(Event::ChildStopping { child: MESH });
    harness.fail(MESH, 3, F3);
    assert!(harness.supervisor.is_new(MESH, 3, F3), "it was reported during the stop only");
}

#[test]
fn the_program_is_notified_of_a_failure_once() {
    let mut harness = Harness::with_owner(ROOT, false, Policy::default());
    assert!(harness.supervisor.notify_program(F1));
    assert!(!harness.supervisor.notify_program(F1));
    harness.fail(MESH, 0, F1);
    assert_eq!(harness.pass(GRACE), [settled(F1, ROOT, Outcome::Root)]);
    harness.step(Event::Observed { failure: F2 });
    assert!(!harness.supervisor.notify_program(F2), "a caller has received it");
}

#[test]
fn the_loss_of_a_host_is_noted_once() {
    let mut supervisor = Supervisor::new(Config::default());
    assert!(supervisor.lose_host(F1));
    assert!(!supervisor.lose_host(F1));
    assert!(supervisor.lose_host(F2));
}
