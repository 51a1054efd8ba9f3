//! A host that moves to another machine while other hosts send to it.

use crate::cluster::{Cluster, all_procs, call};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::node::{Target, epoch_of};
use mesh_wire::id::{HostId, PortId, ProcId};
use std::collections::BTreeMap;

const MOVING: HostId = HostId(1);
const PROCS: u32 = 2;
/// The port of the actors on the host that moves.
const PORT: PortId = PortId(9_000_000);
const WINDOW: u32 = 64;

/// The messages that each sender has sent to each actor, and those that the actors have served, in
/// order.
#[derive(Default)]
struct Ledger {
    next: BTreeMap<ProcId, u64>,
    sent: BTreeMap<(ProcId, u32), Vec<u64>>,
    served: BTreeMap<(ProcId, u32), Vec<u64>>,
    calls: Vec<(ProcId, PortId, usize)>,
}

impl Ledger {
    /// Sends a message of `len` bytes to some actors, with or without a reply.
    fn send(
        &mut self,
        cluster: &mut Cluster,
        from: ProcId,
        targets: &[Target],
        len: usize,
        is_call: bool,
    ) {
        let number = self.next.entry(from).or_default();
        *number += 1;
        let mut body = number.to_le_bytes().to_vec();
        body.resize(len.max(8), 7);
        let mut spec = call(targets.to_vec(), PORT, Bytes::from(body));
        spec.window = WINDOW;
        let node = cluster.node(from.host.0, from.slot);
        let is_sent = if is_call {
            node.call(&spec).map(|port| self.calls.push((from, port, targets.len()))).is_ok()
        } else {
            node.send(&spec).is_ok()
        };
        for target in targets.iter().filter(|_| is_sent) {
            self.sent.entry((from, target.rank)).or_default().push(*number);
        }
    }

    /// Lets the actors serve what has arrived.
    fn serve(&mut self, cluster: &mut Cluster) {
        for target in all_procs(1..2, PROCS) {
            for message in cluster.serve(target.proc, PORT, |_| Bytes::from_static(b"done")) {
                let number = message.body().first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                let key = (message.head.from.proc, target.rank);
                self.served.entry(key).or_default().push(number.expect("it begins with a number"));
            }
        }
    }

    /// Checks that every message was served once and in order, and every call was replied to.
    fn check(&self, cluster: &mut Cluster) {
        for (key, sent) in &self.sent {
            let served = self.served.get(key).map_or(&[][..], Vec::as_slice);
            let at = sent.iter().zip(served).position(|(one, other)| one != other);
            let at = at.unwrap_or(sent.len().min(served.len()));
            assert_eq!(sent.get(at..at + 3), served.get(at..at + 3), "{key:?} from {at}");
            assert_eq!(sent.len(), served.len(), "{key:?}");
        }
        assert_eq!(self.sent.len(), self.served.len());
        for (from, port, count) in &self.calls {
            let (replies, is_over) = cluster.replies(*from, *port);
            assert!(is_over, "a call of {from} waits");
            assert_eq!(replies.len(), *count);
            assert!(replies.values().all(|reply| reply.code == 0), "a call of {from} failed");
        }
    }
}

fn open_actors(cluster: &mut Cluster) {
    for slot in 1..=PROCS {
        cluster.node(MOVING.0, slot).open_mailbox(PORT, WINDOW);
    }
}

fn other_agents(cluster: &Cluster) -> Vec<u32> {
    let agents = cluster.nodes.keys().filter(|proc| proc.slot == 0 && proc.host != MOVING);
    agents.map(|proc| proc.host.0).collect()
}

/// Whether the host has received everything and has no pending work.
fn is_at_rest(cluster: &mut Cluster) -> bool {
    let agents = other_agents(cluster);
    let has_all = agents.iter().all(|host| cluster.node(*host, 0).has_received_all(MOVING));
    let is_quiet = (0..=PROCS).all(|slot| cluster.node(MOVING.0, slot).activity().is_quiet);
    has_all && is_quiet
}

/// Delivers frames and serves messages until the host is at rest, with the credit returned.
fn bring_to_rest(cluster: &mut Cluster, ledger: &mut Ledger) {
    loop {
        while cluster.step() {
            ledger.serve(cluster);
        }
        ledger.serve(cluster);
        cluster.pass(std::time::Duration::from_millis(20));
        for slot in 0..=PROCS {
            cluster.node(MOVING.0, slot).return_credit();
        }
        if is_at_rest(cluster) {
            return;
        }
    }
}

fn hold(cluster: &mut Cluster) {
    for host in other_agents(cluster) {
        cluster.node(host, 0).hold_host(MOVING);
    }
}

fn release(cluster: &mut Cluster) {
    for host in other_agents(cluster) {
        cluster.node(host, 0).release_host(MOVING);
    }
}

/// Moves the host to a new machine, on which the actors continue.
fn move_host(cluster: &mut Cluster, epoch: u32) {
    cluster.exchange_machine(MOVING.0, PROCS, epoch);
    for host in other_agents(cluster) {
        cluster.node(host, 0).host_moved(MOVING, epoch);
    }
    open_actors(cluster);
}

#[test]
fn a_call_that_is_made_while_a_host_moves_is_served_by_the_next_machine() {
    let mut cluster = Cluster::new(3, PROCS, 16);
    open_actors(&mut cluster);
    let mut ledger = Ledger::default();
    hold(&mut cluster);
    for from in [ProcId::new(0, 0), ProcId::new(0, 1), ProcId::new(2, 1)] {
        ledger.send(&mut cluster, from, &all_procs(1..2, PROCS), 8, true);
    }
    cluster.run();
    ledger.serve(&mut cluster);
    assert!(ledger.served.is_empty(), "the messages are held");
    bring_to_rest(&mut cluster, &mut ledger);
    move_host(&mut cluster, 1);
    release(&mut cluster);
    cluster.run();
    ledger.serve(&mut cluster);
    cluster.pass(std::time::Duration::from_millis(20));
    ledger.check(&mut cluster);
    assert_eq!(ledger.served.len(), 6);
}

#[test]
fn a_host_that_does_not_move_after_all_gets_the_held_messages() {
    let mut cluster = Cluster::new(2, PROCS, 16);
    open_actors(&mut cluster);
    let mut ledger = Ledger::default();
    hold(&mut cluster);
    ledger.send(&mut cluster, ProcId::new(0, 0), &all_procs(1..2, PROCS), 8, true);
    cluster.run();
    release(&mut cluster);
    cluster.run();
    ledger.serve(&mut cluster);
    cluster.pass(std::time::Duration::from_millis(20));
    ledger.check(&mut cluster);
}

#[test]
fn a_cancelled_call_that_was_held_never_reaches_the_host() {
    let mut cluster = Cluster::new(2, PROCS, 16);
    open_actors(&mut cluster);
    hold(&mut cluster);
    let target = all_procs(1..2, 1);
    let spec = call(target, PORT, Bytes::from_static(b"x"));
    let from = ProcId::new(0, 1);
    let port = cluster.node(0, 1).call(&spec).expect("the mailbox has space");
    cluster.run();
    cluster.node(0, 1).cancel(port);
    cluster.run();
    release(&mut cluster);
    cluster.run();
    assert_eq!(cluster.serve(ProcId::new(1, 1), PORT, |_| Bytes::new()), []);
    assert!(cluster.replies(from, port).0.is_empty());
}

#[test]
fn a_host_that_dies_while_messages_are_held_fails_them() {
    let mut cluster = Cluster::new(3, PROCS, 16);
    open_actors(&mut cluster);
    hold(&mut cluster);
    let from = ProcId::new(2, 1);
    let spec = call(all_procs(1..2, PROCS), PORT, Bytes::from_static(b"x"));
    let port = cluster.node(2, 1).call(&spec).expect("the mailbox has space");
    cluster.run();
    cluster.kill(MOVING.0);
    for host in other_agents(&cluster) {
        cluster.node(host, 0).declare_host_dead(MOVING, Bytes::from_static(b"why"));
    }
    cluster.run();
    let (replies, is_over) = cluster.replies(from, port);
    assert!(is_over);
    assert!(replies.values().all(|reply| reply.code == fault::HOST_DIED));
}

#[test]
fn a_death_on_the_new_machine_is_reported_to_watchers_of_the_old_process() {
    let mut cluster = Cluster::new(3, PROCS, 16);
    open_actors(&mut cluster);
    let mut ledger = Ledger::default();
    let from = ProcId::new(2, 1);
    ledger.send(&mut cluster, from, &all_procs(1..2, 1), 8, true);
    cluster.run();
    hold(&mut cluster);
    bring_to_rest(&mut cluster, &mut ledger);
    ledger.check(&mut cluster);
    move_host(&mut cluster, 1);
    release(&mut cluster);
    cluster.run();
    let spec = call(all_procs(1..2, 1), PORT, Bytes::from_static(b"x"));
    let port = cluster.node(2, 1).call(&spec).expect("the mailbox has space");
    cluster.run();
    assert_eq!(epoch_of(cluster.node(1, 1).incarnation()), 1);
    cluster.kill_proc(ProcId::new(1, 1));
    cluster.run();
    let (replies, is_over) = cluster.replies(from, port);
    assert!(is_over);
    assert_eq!(replies[&0].code, fault::PROC_DIED);
}

/// Moves a host many times while all other processes send to it, by a seed.
fn move_under_load(seed: u64, attempts: u32, fanout: u16) {
    let mut cluster = Cluster::new(4, PROCS, fanout);
    cluster.seed = seed;
    open_actors(&mut cluster);
    let mut ledger = Ledger::default();
    let senders: Vec<ProcId> =
        cluster.nodes.keys().copied().filter(|proc| proc.host != MOVING).collect();
    let both = all_procs(1..2, PROCS);
    let mut state = seed;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for epoch in 1..=attempts {
        let mut load = |cluster: &mut Cluster, ledger: &mut Ledger, count: usize| {
            for _ in 0..count {
                let from = senders[random(senders.len())];
                let targets = match random(3) {
                    0 => both.clone(),
                    at => vec![both[at - 1]],
                };
                // One in sixteen is long, so that it travels in pieces.
                let len = if random(16) == 0 { 700 << 10 } else { 8 };
                ledger.send(cluster, from, &targets, len, random(4) > 0);
                for _ in 0..random(8) {
                    cluster.step();
                }
                if random(4) == 0 {
                    ledger.serve(cluster);
                }
            }
        };
        load(&mut cluster, &mut ledger, 20);
        hold(&mut cluster);
        load(&mut cluster, &mut ledger, 10);
        bring_to_rest(&mut cluster, &mut ledger);
        load(&mut cluster, &mut ledger, 5);
        if epoch % 8 == 0 {
            release(&mut cluster);
            continue;
        }
        move_host(&mut cluster, epoch);
        load(&mut cluster, &mut ledger, 5);
        release(&mut cluster);
    }
    for _ in 0..4 {
        while cluster.step() {
            ledger.serve(&mut cluster);
        }
        ledger.serve(&mut cluster);
        cluster.pass(std::time::Duration::from_millis(50));
    }
    println!("seed {seed}");
    ledger.check(&mut cluster);
}

/// Every eighth attempt is given up before the host moves, so these are 101 moves.
const ATTEMPTS: u32 = 115;

#[test]
fn no_message_is_lost_or_served_twice_or_reordered_by_moves() {
    for seed in 1..=6 {
        move_under_load(seed, ATTEMPTS, if seed % 2 == 0 { 16 } else { 1 });
    }
}

#[test]
#[ignore = "takes a minute"]
fn no_message_is_lost_or_served_twice_or_reordered_by_ten_thousand_moves() {
    for seed in 1..=100 {
        move_under_load(seed, ATTEMPTS, if seed % 2 == 0 { 16 } else { 1 });
    }
}
