//! The oracle detects each kind of violation.

use mesh_runtime::fault;
use mesh_sim::message::{Task, Work};
use mesh_sim::oracle::{Oracle, value_of};
use mesh_wire::id::{HostId, PortId, ProcId};
use std::time::Duration;

const PORT: PortId = PortId(20);
const PLACE: ProcId = ProcId::new(0, 1);
const CALLER: ProcId = ProcId::new(1, 1);
const START: Duration = Duration::ZERO;
const DEATH: Duration = Duration::from_secs(10);
const LATER: Duration = Duration::from_secs(60);

/// An oracle with life 0 at `CALLER`, which calls, and life 1 at `PLACE`, which has an actor.
fn oracle() -> Oracle {
    let mut oracle = Oracle::default();
    oracle.started(0, CALLER, 0);
    oracle.started(1, PLACE, 0);
    oracle.opened(1, PORT, START);
    oracle
}

fn task(serial: u64) -> Task {
    Task { sender: 0, line: 7, serial, tag: 100 + serial, work: Work::Echo }
}

/// Runs a history and checks that it violates the expected invariant, or none.
fn check(history: impl FnOnce(&mut Oracle), broken: Option<&str>) {
    let mut oracle = oracle();
    history(&mut oracle);
    oracle.check_quiet();
    match (oracle.violations(), broken) {
        ([], None) => {}
        ([first, ..], Some(word)) => assert!(first.contains(word), "{word:?} is not in {first:?}"),
        (violations, _) => panic!("expected {broken:?}, found {violations:?}"),
    }
}

fn call(oracle: &mut Oracle, tag: u64) {
    oracle.sent_call(tag, 0, [(0, PLACE, 1)].into_iter(), LATER);
}

fn reply(oracle: &mut Oracle, tag: u64, code: u8) {
    oracle.replied(tag, 0, PLACE, code, Some(value_of(tag, 0)));
}

#[test]
fn messages_delivered_once_and_in_order_are_valid() {
    check(|oracle| (1..4).for_each(|serial| oracle.received(1, PORT, 0, &task(serial))), None);
}

#[test]
fn a_message_out_of_order_or_duplicated_is_a_violation() {
    for serials in [[1, 3, 2], [1, 2, 2]] {
        let history = |oracle: &mut Oracle| {
            serials.iter().for_each(|serial| oracle.received(1, PORT, 0, &task(*serial)));
        };
        check(history, Some("order"));
    }
}

#[test]
fn a_call_that_never_completes_is_a_violation() {
    check(|oracle| call(oracle, 5), Some("never ends"));
    let died_waiting = |oracle: &mut Oracle| {
        call(oracle, 5);
        oracle.died(0, ProcId::new(0, 0), LATER);
    };
    check(died_waiting, None);
}

#[test]
fn wrong_missing_and_extra_replies_are_violations() {
    let good = |oracle: &mut Oracle| {
        call(oracle, 5);
        reply(oracle, 5, 0);
        oracle.call_ended(5);
    };
    check(good, None);
    let wrong = |oracle: &mut Oracle| {
        call(oracle, 5);
        oracle.replied(5, 0, PLACE, 0, Some(value_of(6, 0)));
    };
    check(wrong, Some("reply of another call"));
    let missing = |oracle: &mut Oracle| {
        call(oracle, 5);
        oracle.call_ended(5);
    };
    check(missing, Some("did not reply"));
    let twice = |oracle: &mut Oracle| {
        call(oracle, 5);
        reply(oracle, 5, 0);
        reply(oracle, 5, 0);
    };
    check(twice, Some("two replies"));
    check(|oracle| reply(oracle, 9, 0), Some("nobody made"));
}

#[test]
fn reporting_a_live_process_as_dead_is_a_violation() {
    let history = |oracle: &mut Oracle| {
        call(oracle, 5);
        reply(oracle, 5, fault::PROC_DIED);
        oracle.call_ended(5);
    };
    check(history, Some("reported dead"));
    let dead = |oracle: &mut Oracle| {
        oracle.died(1, PLACE, LATER);
        history(oracle);
    };
    check(dead, None);
}

/// Life 1 dies and life 2 replaces it.
fn replace(oracle: &mut Oracle) {
    oracle.died(1, PLACE, DEATH);
    oracle.started(2, PLACE, 1);
}

/// Life 0 calls life 2 and gets a fault of a dead process.
fn call_successor(oracle: &mut Oracle, at: Duration) {
    oracle.sent_call(5, 0, [(0, PLACE, 2)].into_iter(), at);
    reply(oracle, 5, fault::PROC_DIED);
    oracle.call_ended(5);
}

#[test]
fn a_late_fault_of_an_earlier_death_is_a_violation() {
    for (after_s, broken) in [(1, None), (3, Some("reported dead"))] {
        let history = |oracle: &mut Oracle| {
            replace(oracle);
            call_successor(oracle, DEATH + Duration::from_secs(after_s));
        };
        check(history, broken);
    }
}

/// Checks a call of the successor of life 1 while agents are stopped. Each stall has a host, a
/// start and an end, and like the call it is in seconds after the death of life 1.
fn check_with_stalls(stalls: &[(HostId, u64, u64)], call_s: u64, broken: Option<&str>) {
    let after = |secs| DEATH + Duration::from_secs(secs);
    let history = |oracle: &mut Oracle| {
        for (host, from_s, until_s) in stalls {
            oracle.agent_stalled(*host, after(*from_s), after(*until_s));
        }
        replace(oracle);
        call_successor(oracle, after(call_s));
    };
    check(history, broken);
}

#[test]
fn only_stalls_of_the_involved_agents_extend_the_report_deadline() {
    let late = Some("reported dead");
    let of_caller = [(CALLER.host, 1, 5)];
    check_with_stalls(&of_caller, 6, None);
    check_with_stalls(&of_caller, 7, late);
    let of_both = [(CALLER.host, 1, 5), (PLACE.host, 2, 6)];
    check_with_stalls(&of_both, 7, None);
    check_with_stalls(&of_both, 8, late);
    check_with_stalls(&[(HostId(7), 1, 5)], 4, late);
    check_with_stalls(&[(PLACE.host, 0, 1)], 4, late);
}

#[test]
fn a_process_notified_of_a_replacement_gets_no_fault_of_the_earlier_death() {
    let notified = |at: Duration, incarnation| {
        move |oracle: &mut Oracle| {
            replace(oracle);
            oracle.replaced(0, PLACE, incarnation, at);
            call_successor(oracle, DEATH + Duration::from_millis(2));
        }
    };
    check(notified(DEATH + Duration::from_millis(1), 1), Some("reported dead"));
    check(notified(DEATH + Duration::from_millis(3), 1), None);
    check(notified(DEATH + Duration::from_millis(1), 0), None);
}

#[test]
fn reporting_a_host_with_a_live_agent_as_dead_is_a_violation() {
    let history = |oracle: &mut Oracle| {
        oracle.died(1, PLACE, LATER);
        call(oracle, 5);
        reply(oracle, 5, fault::HOST_DIED);
        oracle.call_ended(5);
    };
    check(history, Some("its agent is not"));
}

#[test]
fn losing_a_message_between_live_processes_is_a_violation() {
    let sent = |oracle: &mut Oracle| {
        oracle.sent_one_way(&task(1), PORT, [(0, PLACE, 1)].into_iter(), LATER);
    };
    check(sent, Some("lost"));
    let arrived = |oracle: &mut Oracle| {
        sent(oracle);
        oracle.received(1, PORT, 0, &task(1));
    };
    check(arrived, None);
    let stopped = |oracle: &mut Oracle| {
        sent(oracle);
        oracle.closed(1, PORT);
    };
    check(stopped, None);
}
