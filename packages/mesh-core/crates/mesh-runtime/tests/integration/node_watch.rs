//! Which hosts have to be requested to report a death, and which need not be.

use crate::cluster::{Cluster, HEARTBEAT, all_procs, call};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::node::{Effect, Node, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::{HostId, PortId, ProcId};
use std::time::Duration;

const ROOT: ProcId = ProcId::new(0, 0);

/// Returns the deaths reported to a process, and whether each is the death of the host.
fn deaths(node: &mut Node) -> Vec<(ProcId, bool)> {
    let mut frames = Vec::new();
    node.take_messages(PortId::AGENT, usize::MAX, &mut frames).expect("agents take messages");
    let died = frames.into_iter().filter(|frame| frame.head.kind == Kind::Died);
    died.map(|frame| (frame.head.from.proc, frame.head.flags == fault::HOST_DIED)).collect()
}

fn watches_sent(cluster: &Cluster, from: u32, to: u32) -> usize {
    cluster.sent(from, to, Kind::Watch).0
}

#[test]
fn no_host_is_requested_to_report_its_own_death() {
    let mut cluster = Cluster::new(2, 3, 16);
    for slot in 1..=3 {
        cluster.node(1, slot).watch(ROOT);
    }
    cluster.run();
    assert_eq!(watches_sent(&cluster, 1, 0), 0);
    cluster.kill(0);
    cluster.pass(HEARTBEAT * 4);
    for slot in 1..=3 {
        assert_eq!(deaths(cluster.node(1, slot)), [(ROOT, true)]);
    }
}

#[test]
fn a_cast_implies_watches_of_its_receivers() {
    let mut cluster = Cluster::new(3, 2, 16);
    let targets = all_procs(1..3, 2);
    let port = cluster.root().new_port();
    cluster.root().send(&call(targets.clone(), port, Bytes::new())).expect("the mailbox has space");
    targets.iter().for_each(|target| cluster.root().watch(target.proc));
    cluster.run();
    assert_eq!(watches_sent(&cluster, 0, 1) + watches_sent(&cluster, 0, 2), 0);
    let victim = targets[2].proc;
    cluster.kill_proc(victim);
    cluster.run();
    assert_eq!(deaths(cluster.root()), [(victim, false)]);
    // The replacement is not watched yet.
    cluster.node(2, 0).proc_started(victim, 1);
    cluster.root().watch(victim);
    cluster.run();
    assert_eq!(watches_sent(&cluster, 0, 2), 1);
}

#[test]
fn a_cast_to_a_dead_host_does_not_watch_its_replacement() {
    let mut cluster = Cluster::new(3, 2, 16);
    cluster.kill(2);
    cluster.pass(HEARTBEAT * 4);
    let targets = all_procs(1..3, 2);
    let port = cluster.root().new_port();
    cluster.root().send(&call(targets.clone(), port, Bytes::new())).expect("the mailbox has space");
    cluster.root().host_replaced(HostId(2), 1);
    cluster.root().effects().for_each(drop);
    cluster.root().watch(targets[2].proc);
    let asked: Vec<Effect> = cluster.root().effects().collect();
    let call = Effect::Connect { peer: ProcId::new(2, 0), after: Duration::ZERO };
    assert!(asked.contains(&call), "nobody asks the new machine: {asked:?}");
}

#[test]
fn a_connected_process_is_notified_of_a_death_before_its_link_closes() {
    let mut cluster = Cluster::new(1, 2, 16);
    let callee = ProcId::new(0, 2);
    let port = cluster.node(0, 1).new_port();
    let targets = vec![Target { proc: callee, rank: 0 }];
    cluster.node(0, 1).send(&call(targets, port, Bytes::new())).expect("the mailbox has space");
    cluster.run();
    assert!(cluster.node(0, 1).link_to(callee).is_some());
    cluster.kill_proc_unread(callee);
    cluster.run();
    assert_eq!(deaths(cluster.node(0, 1)), [(callee, false)]);
    // The next call connects again, and reaches the process that has taken the place.
    assert!(cluster.node(0, 1).link_to(callee).is_none());
}
