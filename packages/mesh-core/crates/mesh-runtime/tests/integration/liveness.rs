//! When a silent host is dead, and when it is only unresponsive.

use crate::cluster::{Cluster, HEARTBEAT, UNRESPONSIVE_TIMEOUT};
use bytes::Bytes;
use mesh_runtime::node::{Effect, HostWatch, Node, NodeConfig};
use mesh_wire::id::{HostId, JobId, ProcId};
use std::time::Duration;

const SILENT: HostId = HostId(2);

fn three_hosts() -> Cluster {
    let mut cluster = Cluster::new(3, 1, 4);
    cluster.pass(HEARTBEAT);
    cluster
}

#[test]
fn a_host_without_power_is_dead_after_three_heartbeats() {
    let mut cluster = three_hosts();
    cluster.kill(SILENT.0);
    cluster.pass(HEARTBEAT * 4);
    assert!(cluster.root().is_host_dead(SILENT));
    assert!(!cluster.root().is_host_dead(HostId(1)));
}

#[test]
fn a_stopped_host_whose_machine_acknowledges_is_not_dead() {
    let mut cluster = three_hosts();
    cluster.stopped.insert(SILENT);
    cluster.pass(UNRESPONSIVE_TIMEOUT - HEARTBEAT);
    assert!(!cluster.root().is_host_dead(SILENT));
    let silence = cluster.root().silence_of(SILENT).expect("it is silent");
    assert!(silence > UNRESPONSIVE_TIMEOUT - HEARTBEAT * 2, "{silence:?}");
    cluster.stopped.clear();
    cluster.pass(UNRESPONSIVE_TIMEOUT * 2);
    assert!(!cluster.root().is_host_dead(SILENT), "it has answered in time");
    assert_eq!(cluster.root().silence_of(SILENT), None);
}

#[test]
fn a_stopped_host_is_dead_after_the_unresponsive_timeout() {
    let mut cluster = three_hosts();
    cluster.stopped.insert(SILENT);
    cluster.pass(UNRESPONSIVE_TIMEOUT + HEARTBEAT);
    assert!(cluster.root().is_host_dead(SILENT));
}

#[test]
fn a_stopped_host_that_loses_its_power_is_dead_at_once() {
    let mut cluster = three_hosts();
    cluster.stopped.insert(SILENT);
    cluster.pass(HEARTBEAT * 5);
    assert!(!cluster.root().is_host_dead(SILENT));
    cluster.kill(SILENT.0);
    cluster.pass(HEARTBEAT);
    assert!(cluster.root().is_host_dead(SILENT));
}

/// Returns an agent that monitors one host, which has never responded.
fn observer() -> Node {
    let mut node = Node::new(NodeConfig {
        me: ProcId::new(0, 0),
        incarnation: 0,
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 20,
    });
    node.monitor_host(SILENT, HostWatch::strict(HEARTBEAT, Bytes::new()));
    node.advance(Duration::ZERO);
    node
}

fn probes(node: &mut Node) -> usize {
    node.effects().filter(|effect| *effect == Effect::Probe(SILENT)).count()
}

#[test]
fn a_suspension_of_the_observer_counts_as_one_check() {
    let mut node = observer();
    node.advance(HEARTBEAT / 4);
    node.advance(HEARTBEAT * 1000);
    assert_eq!(probes(&mut node), 0);
    for check in 1..=10 {
        node.advance(HEARTBEAT * 1000 + HEARTBEAT / 4 * check);
    }
    assert_eq!(probes(&mut node), 1, "three heartbeats of its own running time are over");
}

#[test]
fn input_that_was_pending_at_the_probe_is_a_sign_of_life() {
    let mut cluster = three_hosts();
    cluster.stopped.insert(SILENT);
    cluster.pass(HEARTBEAT * 4);
    cluster.stopped.clear();
    cluster.run();
    cluster.root().probed(SILENT, None);
    assert!(!cluster.root().is_host_dead(SILENT));
}
