//! Everything that a process has written before it died is read before its death is reported.

use bytes::Bytes;
use mesh_runtime::engine::Engine;
use mesh_runtime::engine::wire::Descriptors;
use mesh_runtime::node::{CallSpec, NodeConfig, Target};
use mesh_runtime::segment::Filled;
use mesh_wire::frame::Kind;
use mesh_wire::id::{JobId, PortId, ProcId};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const AGENT: ProcId = ProcId::new(0, 0);
const WORKER: ProcId = ProcId::new(0, 1);
const LIMIT: Duration = Duration::from_secs(10);
const ROUNDS: u32 = 20;
const MESSAGES: usize = 300;

/// Segments for processes that share no memory.
struct NoSegments;

impl Descriptors for NoSegments {
    fn get(&self, _segment: u32) -> Option<Arc<OwnedFd>> {
        None
    }
    fn learn(&self, _owner: ProcId, _segment: u32, _descriptor: OwnedFd) {}
    fn acquired(&self, _segment: u32, _generation: u32) {}
    fn released(&self, _reader: ProcId, _segment: u32, _generation: u32) {}
    fn peer_died(&self, _proc: ProcId) {}
    fn filled(&self, _filled: &Filled) -> bool {
        false
    }
    fn sweep(&self) -> bool {
        false
    }
}

fn start(me: ProcId, incarnation: u32, dir: &Path) -> Arc<Engine> {
    let config = NodeConfig {
        me,
        incarnation,
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 24,
    };
    let segments = Arc::new(NoSegments);
    let engine = Engine::start(config, dir.to_owned(), segments, Box::new(|_| {}), Instant::now());
    let engine = engine.expect("there are descriptors and threads");
    engine.listen().expect("the directory is ours");
    engine
}

/// Returns a message of 1 kB to the agent of the host.
fn post() -> CallSpec {
    CallSpec {
        kind: Kind::Post,
        targets: Arc::new([Target { proc: AGENT, rank: 0 }]),
        port: PortId::AGENT,
        meta_len: 0,
        part_count: 0,
        tail: Bytes::from(vec![7; 1000]),
        window: u32::MAX,
        timeout: None,
    }
}

#[test]
fn frames_of_a_dead_process_are_delivered_before_its_death() {
    let dir = std::env::temp_dir().join(format!("mesh-engine-death-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("there is space");
    let agent = start(AGENT, 0, &dir);
    for incarnation in 0..ROUNDS {
        agent.with_node(|node| node.proc_started(WORKER, incarnation));
        let worker = start(WORKER, incarnation, &dir);
        worker.with_node(|node| node.dial(AGENT));
        let mut got = Vec::new();
        while agent.with_node(|node| node.link_to(WORKER)).is_none() {
            std::thread::yield_now();
        }
        for _ in 0..MESSAGES {
            worker.with_node(|node| node.call(&post())).expect("the mailbox has space");
        }
        worker.drain(LIMIT);
        agent.proc_died(WORKER, incarnation, Bytes::from_static(b"gone"));
        agent
            .with_node(|node| node.take_messages(PortId::AGENT, 2 * MESSAGES, &mut got))
            .expect("the mailbox of the agent is open");
        let posted = got.iter().filter(|frame| frame.head.kind == Kind::Post).count();
        assert_eq!(posted, MESSAGES, "in round {incarnation}");
        worker.close();
    }
    agent.close();
    std::fs::remove_dir_all(&dir).expect("it was made above");
}
