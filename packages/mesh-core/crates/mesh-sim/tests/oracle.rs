//! The oracle sees each promise that is broken.

use mesh_runtime::fault;
use mesh_sim::message::{Errand, Work};
use mesh_sim::oracle::{Oracle, value_of};
use mesh_wire::id::{PortId, ProcId};
use std::time::Duration;

const PORT: PortId = PortId(20);
const PLACE: ProcId = ProcId::new(0, 1);
const START: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(60);

/// Life 0 calls, life 1 at `PLACE` has an actor.
fn oracle() -> Oracle {
    let mut oracle = Oracle::default();
    oracle.started(0);
    oracle.started(1);
    oracle.opened(1, PORT, START);
    oracle
}

fn errand(serial: u64) -> Errand {
    Errand { sender: 0, line: 7, serial, tag: 100 + serial, work: Work::Echo }
}

/// Runs a history and looks for a promise that it breaks.
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

fn answer(oracle: &mut Oracle, tag: u64, code: u8) {
    oracle.answered(tag, 0, PLACE, code, Some(value_of(tag, 0)));
}

#[test]
fn messages_in_order_and_once_are_fine() {
    check(|oracle| (1..4).for_each(|serial| oracle.received(1, PORT, 0, &errand(serial))), None);
}

#[test]
fn a_message_that_overtakes_or_comes_twice_is_seen() {
    for serials in [[1, 3, 2], [1, 2, 2]] {
        let history = |oracle: &mut Oracle| {
            serials.iter().for_each(|serial| oracle.received(1, PORT, 0, &errand(*serial)));
        };
        check(history, Some("order"));
    }
}

#[test]
fn a_wait_that_does_not_end_is_seen() {
    check(|oracle| call(oracle, 5), Some("never ends"));
    let died_waiting = |oracle: &mut Oracle| {
        call(oracle, 5);
        oracle.died(0, ProcId::new(0, 0), LATER);
    };
    check(died_waiting, None);
}

#[test]
fn answers_that_are_wrong_missing_or_too_many_are_seen() {
    let good = |oracle: &mut Oracle| {
        call(oracle, 5);
        answer(oracle, 5, 0);
        oracle.call_ended(5);
    };
    check(good, None);
    let wrong = |oracle: &mut Oracle| {
        call(oracle, 5);
        oracle.answered(5, 0, PLACE, 0, Some(value_of(6, 0)));
    };
    check(wrong, Some("answer of another call"));
    let missing = |oracle: &mut Oracle| {
        call(oracle, 5);
        oracle.call_ended(5);
    };
    check(missing, Some("did not answer"));
    let twice = |oracle: &mut Oracle| {
        call(oracle, 5);
        answer(oracle, 5, 0);
        answer(oracle, 5, 0);
    };
    check(twice, Some("twice"));
    check(|oracle| answer(oracle, 9, 0), Some("nobody made"));
}

#[test]
fn the_living_are_not_to_be_called_dead() {
    let history = |oracle: &mut Oracle| {
        call(oracle, 5);
        answer(oracle, 5, fault::PROC_DIED);
        oracle.call_ended(5);
    };
    check(history, Some("said to be dead"));
    let dead = |oracle: &mut Oracle| {
        oracle.died(1, PLACE, LATER);
        history(oracle);
    };
    check(dead, None);
}

#[test]
fn a_host_with_a_living_agent_is_not_to_be_called_dead() {
    let history = |oracle: &mut Oracle| {
        oracle.died(1, PLACE, LATER);
        call(oracle, 5);
        answer(oracle, 5, fault::HOST_DIED);
        oracle.call_ended(5);
    };
    check(history, Some("its agent is not"));
}

#[test]
fn a_message_between_the_living_is_not_to_be_lost() {
    let sent = |oracle: &mut Oracle| {
        oracle.sent_one_way(&errand(1), PORT, [(0, PLACE, 1)].into_iter(), LATER);
    };
    check(sent, Some("lost"));
    let arrived = |oracle: &mut Oracle| {
        sent(oracle);
        oracle.received(1, PORT, 0, &errand(1));
    };
    check(arrived, None);
    let stopped = |oracle: &mut Oracle| {
        sent(oracle);
        oracle.closed(1, PORT);
    };
    check(stopped, None);
}
