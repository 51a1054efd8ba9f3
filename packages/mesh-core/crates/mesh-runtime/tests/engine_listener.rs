//! Connections from other hosts and from processes of the same host, as the engine handles them.

mod client_connections;

use bytes::Bytes;
use client_connections::{LIMIT, bare, head, members, memory_len, send_raw, wait_closed};
use mesh_runtime::engine::Engine;
use mesh_runtime::engine::channel::Channel;
use mesh_runtime::engine::listener::Listener;
use mesh_runtime::engine::wire::Descriptors;
use mesh_runtime::node::{Effect, Node, NodeConfig};
use mesh_runtime::segment::Filled;
use mesh_trust::Trust;
use mesh_wire::frame::{Frame, Kind, TAIL_LEN_MAX};
use mesh_wire::id::{JobId, ProcId};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const JOB: JobId = JobId([1; 16]);
const HERE: ProcId = ProcId::new(0, 0);
const THERE: ProcId = ProcId::new(1, 0);

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

fn config(me: ProcId) -> NodeConfig {
    NodeConfig { me, incarnation: 0, job: JOB, token: [2; 32], backlog_bytes_max: 1 << 24 }
}

/// A host that other hosts can reach.
struct Host {
    engine: Arc<Engine>,
    listener: Arc<Listener>,
    at: SocketAddr,
    dir: PathBuf,
    mine: Trust,
}

impl Host {
    fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mesh-listener-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("there is space");
        let segments = Arc::new(NoSegments);
        let over = Box::new(|_| {});
        let engine = Engine::start(config(HERE), dir.clone(), segments, over, Instant::now())
            .expect("there are descriptors and threads");
        engine.listen().expect("the directory is ours");
        let (mine, program) = members();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let at = listener.local_addr().expect("it is bound");
        let listener = Listener::open(listener.into(), program).expect("there are threads");
        listener.refuse(bare(Kind::Attached));
        engine.admit(&listener);
        Self { engine, listener, at, dir, mine }
    }

    fn connect(&self) -> Channel {
        Channel::connect(&[self.at], &self.mine, Instant::now() + LIMIT).expect("a member")
    }

    /// Returns a connection that was welcomed as that process.
    fn link(&self, me: ProcId) -> Channel {
        let mut channel = self.connect();
        channel.send(&hello(config(me)), Instant::now() + LIMIT).expect("it is taken");
        channel.receive_first(&[Kind::Welcome], Instant::now() + LIMIT).expect("it is welcome");
        channel
    }

    #[track_caller]
    fn check_refused(&self, hello: &Frame) {
        let mut channel = self.connect();
        channel.send(hello, Instant::now() + LIMIT).expect("it is taken");
        assert!(channel.receive_first(&[Kind::Welcome], Instant::now() + LIMIT).is_err());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.listener.close();
        self.engine.close();
        // Remaining files are in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns the first frame of a process to the host.
fn hello(config: NodeConfig) -> Frame {
    let mut node = Node::new(config);
    node.dial(HERE);
    node.effects().for_each(drop);
    node.connected(HERE);
    let effects: Vec<Effect> = node.effects().collect();
    let frame = effects.into_iter().find_map(|effect| match effect {
        Effect::Transmit { frame, .. } => Some(frame),
        _ => None,
    });
    frame.expect("it greets")
}

#[test]
fn a_member_of_the_job_is_accepted() {
    drop(Host::start("welcome").link(THERE));
}

#[test]
fn a_greeting_of_another_job_or_without_its_token_gets_no_reply() {
    let host = Host::start("other");
    host.check_refused(&hello(NodeConfig { job: JobId([9; 16]), ..config(THERE) }));
    host.check_refused(&hello(NodeConfig { token: [9; 32], ..config(THERE) }));
    let mut short = hello(config(THERE));
    short.tail = short.tail.slice(1..);
    host.check_refused(&short);
    drop(host.link(THERE));
}

#[test]
fn a_process_that_is_not_an_agent_of_another_host_gets_no_reply() {
    let host = Host::start("agent");
    host.check_refused(&hello(config(ProcId::new(1, 3))));
    host.check_refused(&hello(config(ProcId::new(0, 3))));
}

#[test]
fn a_greeting_of_a_replaced_generation_gets_no_reply() {
    let host = Host::start("stale");
    let next = NodeConfig { incarnation: 3, ..config(THERE) };
    let mut channel = host.connect();
    channel.send(&hello(next), Instant::now() + LIMIT).expect("it is taken");
    channel.receive_first(&[Kind::Welcome], Instant::now() + LIMIT).expect("it is welcome");
    host.check_refused(&hello(NodeConfig { incarnation: 2, ..config(THERE) }));
}

#[test]
fn an_invalid_frame_closes_only_its_own_connection() {
    let host = Host::start("long");
    let other = host.link(ProcId::new(2, 0));
    for bytes in [head(Kind::Post, TAIL_LEN_MAX + 1), [b'G'; 64]] {
        let mut link = host.link(THERE);
        send_raw(&mut link, &bytes);
        wait_closed(&link.stream);
    }
    let mut cut = host.link(THERE);
    send_raw(&mut cut, &head(Kind::Post, 100)[..40]);
    drop(cut);
    drop(host.link(THERE));
    assert!(host.engine.with_node(|node| node.link_to(ProcId::new(2, 0))).is_some());
    drop(other);
}

/// The length of all mappings of this process that can hold the largest tail. Other tests run in
/// the same process and also change its total size.
fn large_mappings_len() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let len = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let parse = |text| usize::from_str_radix(text, 16).ok();
        Some(parse(end)? - parse(start)?)
    };
    maps.lines().filter_map(len).filter(|len| *len >= TAIL_LEN_MAX).sum()
}

#[test]
fn memory_for_a_large_frame_is_used_only_as_it_arrives() {
    let host = Host::start("promise");
    let mut links: Vec<Channel> = (1..=2).map(|number| host.link(ProcId::new(number, 0))).collect();
    let memory = memory_len("VmRSS:");
    for link in &mut links {
        send_raw(link, &head(Kind::Post, TAIL_LEN_MAX));
        send_raw(link, &[7; 1000]);
    }
    // The memory of the tails is reserved once the heads are read.
    while large_mappings_len() < links.len() * TAIL_LEN_MAX {
        std::thread::yield_now();
    }
    let taken = memory_len("VmRSS:").saturating_sub(memory);
    assert!(taken < 64 << 20, "{taken} bytes");
}

#[test]
fn a_local_connection_without_a_greeting_is_closed() {
    let host = Host::start("silent");
    let known = UnixStream::connect(host.dir.join("0.sock")).expect("it listens");
    host.engine.with_node(|node| node.proc_started(ProcId::new(0, 1), 0));
    let mut known = Channel { stream: known.into(), secure: None };
    known.send(&hello(config(ProcId::new(0, 1))), Instant::now() + LIMIT).expect("it is taken");
    known.receive_first(&[Kind::Welcome], Instant::now() + LIMIT).expect("it is welcome");
    host.engine.set_hello_max(Duration::from_millis(50));
    let silent = UnixStream::connect(host.dir.join("0.sock")).expect("it listens");
    wait_closed(&silent);
    let link = host.engine.with_node(|node| node.link_to(ProcId::new(0, 1)));
    assert!(link.is_some(), "who has said it stays");
    let died = Bytes::from_static(b"ended");
    host.engine.proc_died(ProcId::new(0, 1), 0, died);
}
