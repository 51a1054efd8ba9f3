//! Clusters whose programs are driven from outside, here by this test.

use bytes::Bytes;
use mesh_runtime::node::{CallSpec, NodeConfig, Target};
use mesh_sim::cluster::{Cluster, Next, ThreadId, Waiter};
use mesh_sim::message::Life;
use mesh_wire::frame::Kind;
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const PORT: PortId = PortId(1 << 20);

/// The agent of a host that calls a process, each with one thread.
struct Pair {
    cluster: Cluster,
    caller: (Life, ThreadId),
    callee: (Life, ThreadId),
    reply_port: PortId,
}

fn config(proc: ProcId) -> NodeConfig {
    let (job, token) = (JobId([1; 16]), [2; 32]);
    NodeConfig { me: proc, incarnation: 0, job, token, backlog_bytes_max: 1 << 20 }
}

impl Pair {
    /// Starts both, and lets the agent call the process.
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::new(seed);
        let (agent, proc) = (HostId(0).agent(), ProcId::new(0, 1));
        let caller = cluster.add_process(config(agent));
        let callee = cluster.add_process(config(proc));
        let threads = (cluster.add_thread(caller), cluster.add_thread(callee));
        cluster.with_node(caller, |node| node.proc_started(proc, 0));
        cluster.with_node(callee, |node| {
            node.open_mailbox(PORT, 8);
            node.dial(agent);
        });
        let spec = CallSpec {
            kind: Kind::Call,
            targets: Arc::from([Target { proc, rank: 0 }]),
            port: PORT,
            meta_len: 0,
            part_count: 0,
            tail: Bytes::from_static(b"hello"),
            window: 8,
            timeout: None,
        };
        let reply_port = cluster.with_node(caller, |node| node.call(&spec)).expect("it is sent");
        cluster.wake(threads.0);
        cluster.wake(threads.1);
        Self { cluster, caller: (caller, threads.0), callee: (callee, threads.1), reply_port }
    }

    /// Lets the running thread of a process wait for an arrival.
    fn wait(&mut self, life: Life, port: PortId) {
        self.cluster.set_waiter(life, port, Waiter::Thread);
        // A thread that was woken while it ran does not wait, and runs again.
        while !self.cluster.begin_wait(None) {}
    }

    /// Runs the threads until the agent has the reply.
    fn run(&mut self) -> Next {
        loop {
            match self.cluster.advance() {
                Next::Thread(thread) if thread == self.callee.1 => {
                    let life = self.callee.0;
                    self.cluster.with_node(life, |node| {
                        let mut frames = Vec::new();
                        node.take_messages(PORT, 1, &mut frames).expect("it is open");
                        for frame in frames {
                            node.reply_to_message(&frame, 0, (0, 0), frame.tail.clone());
                        }
                    });
                    self.wait(life, PORT);
                }
                Next::Thread(_) => {
                    let (life, port) = (self.caller.0, self.reply_port);
                    if self.cluster.with_node(life, |node| node.is_ready(port)) {
                        return Next::Thread(self.caller.1);
                    }
                    self.wait(life, port);
                }
                other => return other,
            }
        }
    }
}

#[test]
fn a_call_gets_a_reply() {
    let mut pair = Pair::new(1);
    assert_eq!(pair.run(), Next::Thread(pair.caller.1));
    assert!(pair.cluster.now() > Duration::ZERO);
}

#[test]
fn equal_seeds_have_equal_histories() {
    let history = |seed| {
        let mut pair = Pair::new(seed);
        pair.run();
        (pair.cluster.trace_hash(), pair.cluster.now())
    };
    assert_eq!(history(1), history(1));
    let hashes: BTreeSet<u64> = (0..10).map(|seed| history(seed).0).collect();
    assert_eq!(hashes.len(), 10);
}

#[test]
fn a_stopped_process_replies_when_it_continues() {
    let mut pair = Pair::new(2);
    pair.cluster.stall(pair.callee.0, Duration::from_secs(1000));
    pair.cluster.set_timer(Duration::from_secs(3), 7);
    assert_eq!(pair.run(), Next::Timer(7));
    pair.cluster.end_stall(pair.callee.0);
    assert_eq!(pair.run(), Next::Thread(pair.caller.1));
    assert!(pair.cluster.now() < Duration::from_secs(4));
}

#[test]
fn no_reply_of_a_killed_process_arrives() {
    let mut pair = Pair::new(3);
    pair.cluster.end_process(pair.callee.0, true);
    pair.cluster.set_timer(Duration::from_secs(1), 7);
    while let Next::Thread(thread) = pair.cluster.advance() {
        // A driver would end the thread of the killed process.
        let (life, port) =
            if thread == pair.callee.1 { (pair.callee.0, PORT) } else { (pair.caller.0, PORT) };
        pair.wait(life, port);
    }
    let (life, port) = (pair.caller.0, pair.reply_port);
    assert!(!pair.cluster.with_node(life, |node| node.is_ready(port)));
}
