//! A machine that replaces a dead host, and a dead one that returns.

use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::node::{
    CallSpec, Effect, HostWatch, LinkId, Node, NodeConfig, Progress, Reply, Target, epoch_of,
    first_incarnation, gone_reply,
};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use std::sync::Arc;
use std::time::Duration;

const ROOT: ProcId = ProcId::new(0, 0);
const AGENT: ProcId = ProcId::new(1, 0);
const OTHER: ProcId = ProcId::new(2, 0);
const HOST: HostId = HostId(1);
const WHY: Bytes = Bytes::from_static(b"why");

fn agent(me: ProcId, epoch: u32) -> Node {
    Node::new(NodeConfig {
        me,
        incarnation: first_incarnation(epoch),
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 20,
    })
}

/// Delivers frames in both directions until none are left or a connection closes.
///
/// Returns whether the connection is still open.
fn pump(left: (&mut Node, LinkId), right: (&mut Node, LinkId)) -> bool {
    let mut is_open = true;
    while is_open && (left.0.has_effects() || right.0.has_effects()) {
        is_open =
            carry(left.0, left.1, right.0, right.1) && carry(right.0, right.1, left.0, left.1);
    }
    is_open
}

/// Delivers the frames sent over a connection; returns `false` if the sender closes it.
fn carry(from: &mut Node, at_from: LinkId, to: &mut Node, at_to: LinkId) -> bool {
    let effects: Vec<Effect> = from.effects().collect();
    let mut is_open = true;
    for effect in effects {
        match effect {
            Effect::Transmit { frame, link } if link == at_from => to.receive(at_to, frame),
            Effect::Close { link } if link == at_from => is_open = false,
            _ => {}
        }
    }
    if !is_open {
        to.link_down(at_to);
    }
    is_open
}

/// Connects one agent to another; returns both ends if the connection stays.
fn connect(dialler: &mut Node, other: &mut Node) -> Option<(LinkId, LinkId)> {
    dialler.dial(other.me());
    dialler.effects().for_each(drop);
    let at_dialler = dialler.connected(other.me());
    let at_other = other.accepted_remote();
    pump((dialler, at_dialler), (other, at_other)).then_some((at_dialler, at_other))
}

fn ask(node: &mut Node, to: ProcId) -> PortId {
    let spec = CallSpec {
        kind: Kind::Call,
        targets: Arc::new([Target { proc: to, rank: 0 }]),
        port: PortId::AGENT,
        meta_len: 0,
        part_count: 0,
        tail: Bytes::from_static(b"x"),
        window: 4,
        timeout: None,
    };
    node.call(&spec).expect("the mailbox has space")
}

fn code_of(node: &mut Node, reply_port: PortId) -> Option<u8> {
    let mut replies: Vec<Reply> = Vec::new();
    let is_over = node.take_replies(reply_port, &mut replies) == Progress::Complete;
    is_over.then(|| replies[0].code)
}

fn inbox(node: &mut Node) -> Vec<Frame> {
    let mut frames = Vec::new();
    node.take_messages(PortId::AGENT, 64, &mut frames).expect("the agent's mailbox is open");
    frames
}

/// Whether the agent of a host was notified that the host is dead.
fn is_fenced(node: &mut Node) -> bool {
    let me = node.me();
    inbox(node).iter().any(|frame| frame.head.kind == Kind::Died && frame.head.from.proc == me)
}

#[test]
fn the_agent_of_the_next_epoch_has_the_same_id() {
    let (mut root, mut old) = (agent(ROOT, 0), agent(AGENT, 0));
    connect(&mut root, &mut old).expect("it lives");
    let lost = ask(&mut root, AGENT);
    root.declare_host_dead(HOST, WHY);
    assert_eq!(code_of(&mut root, lost), Some(fault::HOST_DIED));
    let refused = ask(&mut root, AGENT);
    assert_eq!(code_of(&mut root, refused), Some(fault::HOST_DIED));
    root.host_replaced(HOST, 1);
    assert_eq!(root.host_epoch(HOST), 1);
    let mut new = agent(AGENT, 1);
    let asked = ask(&mut root, AGENT);
    connect(&mut root, &mut new).expect("it is the one that is expected");
    assert_eq!(inbox(&mut new).len(), 1, "what was asked of the new one, and nothing before");
    assert_eq!(code_of(&mut root, asked), None);
}

#[test]
fn outstanding_messages_to_a_dead_host_do_not_count_for_its_replacement() {
    let mut root = agent(ROOT, 0);
    let there = ProcId::new(1, 7);
    for _ in 0..4 {
        ask(&mut root, there);
    }
    root.declare_host_dead(HOST, WHY);
    root.host_replaced(HOST, 1);
    for _ in 0..4 {
        ask(&mut root, there);
    }
}

#[test]
fn a_dead_host_that_connects_is_fenced_and_none_of_its_frames_are_accepted() {
    for is_replaced in [false, true] {
        let (mut root, mut old) = (agent(ROOT, 0), agent(AGENT, 0));
        let (at_root, at_old) = connect(&mut root, &mut old).expect("it lives");
        root.declare_host_dead(HOST, WHY);
        if is_replaced {
            root.host_replaced(HOST, 1);
        }
        assert!(!pump((&mut root, at_root), (&mut old, at_old)), "its link is closed");
        inbox(&mut root);
        ask(&mut old, ROOT);
        assert_eq!(connect(&mut old, &mut root), None);
        assert!(is_fenced(&mut old));
        assert_eq!(inbox(&mut root), []);
    }
}

#[test]
fn a_dead_host_that_accepts_a_connection_is_fenced() {
    let (mut other, mut old) = (agent(OTHER, 0), agent(AGENT, 0));
    connect(&mut other, &mut old).expect("it lives");
    other.declare_host_dead(HOST, WHY);
    other.host_replaced(HOST, 1);
    other.effects().for_each(drop);
    ask(&mut other, AGENT);
    assert_eq!(connect(&mut other, &mut old), None, "it is not the one that is meant");
    assert!(is_fenced(&mut old));
}

#[test]
fn an_agent_is_notified_of_its_own_death_once() {
    let (mut root, mut old) = (agent(ROOT, 0), agent(AGENT, 0));
    root.declare_host_dead(HOST, WHY);
    for _ in 0..3 {
        let link = old.accepted_remote();
        old.receive(link, root.fence(HOST, 1));
        let replies: Vec<Kind> = old
            .effects()
            .filter_map(|effect| match effect {
                Effect::Transmit { frame, .. } => Some(frame.head.kind),
                _ => None,
            })
            .collect();
        assert_eq!(replies, [Kind::Welcome], "so that who has told it knows");
    }
    assert_eq!(inbox(&mut old).len(), 1);
}

#[test]
fn a_fence_for_an_earlier_epoch_does_not_fence_the_next_at_the_same_address() {
    let (mut root, mut new) = (agent(ROOT, 0), agent(AGENT, 1));
    root.declare_host_dead(HOST, WHY);
    root.host_replaced(HOST, 1);
    let (at_root, at_new) = connect(&mut root, &mut new).expect("it lives");
    let link = new.accepted_remote();
    new.receive(link, root.fence(HOST, 1));
    assert!(!is_fenced(&mut new));
    let asked = ask(&mut root, AGENT);
    assert!(pump((&mut root, at_root), (&mut new, at_new)), "its link is as it was");
    assert_eq!(inbox(&mut new).len(), 1);
    assert_eq!(code_of(&mut root, asked), None);
}

#[test]
fn a_fence_of_another_job_is_ignored() {
    let mut other_job = Node::new(NodeConfig {
        me: ROOT,
        incarnation: 0,
        job: JobId([1; 16]),
        token: [3; 32],
        backlog_bytes_max: 1 << 20,
    });
    let mut host = agent(AGENT, 0);
    let link = host.accepted_remote();
    host.receive(link, other_job.fence(HOST, 1));
    assert!(!is_fenced(&mut host));
    other_job.effects().for_each(drop);
}

#[test]
fn a_host_accepts_a_replacement_once_it_is_announced() {
    let (mut other, mut new) = (agent(OTHER, 0), agent(AGENT, 1));
    assert_eq!(connect(&mut new, &mut other), None, "nobody has told of it yet");
    assert!(!is_fenced(&mut new));
    assert!(!is_fenced(&mut other));
    other.declare_host_dead(HOST, WHY);
    other.host_replaced(HOST, 1);
    new.effects().for_each(drop);
    let at_new = new.connected(OTHER);
    let at_other = other.accepted_remote();
    assert!(pump((&mut new, at_new), (&mut other, at_other)));
}

#[test]
fn messages_to_a_rank_lost_with_its_host_are_refused_by_the_replacement() {
    let (mut root, mut new) = (agent(ROOT, 0), agent(AGENT, 1));
    root.declare_host_dead(HOST, WHY);
    root.host_replaced(HOST, 1);
    let asked = ask(&mut root, ProcId::new(1, 3));
    connect(&mut root, &mut new).expect("it lives");
    assert_eq!(code_of(&mut root, asked), Some(fault::HOST_DIED));
    new.proc_started(ProcId::new(1, 3), first_incarnation(1) + 1);
    let asked = ask(&mut root, ProcId::new(1, 3));
    assert_eq!(code_of(&mut root, asked), None, "it waits for the process to report");
}

#[test]
fn a_host_dies_once_and_its_watchers_are_notified_once() {
    let mut root = agent(ROOT, 0);
    let there = ProcId::new(1, 5);
    root.watch(there);
    root.declare_host_dead(HOST, WHY);
    root.declare_host_dead(HOST, WHY);
    let told: Vec<ProcId> = inbox(&mut root).iter().map(|frame| frame.head.from.proc).collect();
    assert_eq!(told, [there, AGENT]);
    root.host_replaced(HOST, 1);
    root.watch(there);
    root.declare_host_dead(HOST, WHY);
    let told: Vec<u32> = inbox(&mut root).iter().map(|frame| frame.head.rank).collect();
    assert_eq!(epoch_of(told[0]), 1, "of the one that was there by then");
}

#[test]
fn the_host_of_the_program_is_never_fenced() {
    let (mut root, mut host) = (agent(ROOT, 0), agent(AGENT, 0));
    host.declare_host_dead(HostId(0), WHY);
    let link = root.accepted_remote();
    root.receive(link, host.fence(HostId(0), 1));
    assert!(!is_fenced(&mut root));
}

#[test]
fn port_numbers_differ_between_the_epochs_of_a_host() {
    let mut seen: Vec<PortId> = (0..256).map(|epoch| agent(AGENT, epoch).new_port()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 256);
}

/// Connects a node to an agent; returns the connection and its first frame.
fn greet(node: &mut Node, agent: ProcId) -> (LinkId, Frame) {
    node.dial(agent);
    node.effects().for_each(drop);
    let link = node.connected(agent);
    let sent = node.effects().find_map(|effect| match effect {
        Effect::Transmit { frame, .. } => Some(frame),
        _ => None,
    });
    (link, sent.expect("it greets"))
}

/// Returns the ends of sessions that were reported to a node.
fn ends(node: &mut Node) -> Vec<(ProcId, u8)> {
    let died = inbox(node).into_iter().filter(|frame| frame.head.kind == Kind::Died);
    died.map(|frame| (frame.head.from.proc, frame.head.flags)).collect()
}

#[test]
fn the_root_learns_from_the_worker_that_its_session_has_ended() {
    let (mut root, mut host, mut other) = (agent(ROOT, 0), agent(AGENT, 0), agent(OTHER, 0));
    for node in [&mut root, &mut other] {
        let (link, _) = connect(node, &mut host).expect("it lives");
        node.link_down(link);
        let (link, hello) = greet(node, AGENT);
        node.receive(link, gone_reply(&hello).expect("it is a hello"));
    }
    assert_eq!(ends(&mut root), [(AGENT, fault::STOPPED)]);
    assert_eq!(ends(&mut other), [], "it hears from the root what that means");
    assert!(!root.is_host_dead(HOST), "what that means is for the program to say");
}

#[test]
fn replies_on_behalf_of_a_host_that_is_gone_are_not_a_sign_of_life() {
    let mut root = agent(ROOT, 0);
    let watch = HostWatch {
        unresponsive_timeout: Duration::from_secs(60),
        ..HostWatch::strict(Duration::from_secs(1), WHY)
    };
    root.monitor_host(HOST, watch);
    for check in 0..12 {
        root.advance(Duration::from_millis(250 * check));
        let (link, hello) = greet(&mut root, AGENT);
        root.note_activity(link);
        root.receive(link, gone_reply(&hello).expect("it is a hello"));
    }
    root.advance(Duration::from_secs(3));
    assert!(root.effects().any(|effect| effect == Effect::Probe(HOST)));
    root.probed(HOST, Some(Duration::ZERO));
    assert!(root.is_host_dead(HOST), "nobody has said what its end means, and it is silent");
}

#[test]
fn a_death_is_reported_with_the_last_incarnation_that_it_covers() {
    let mut root = agent(ROOT, 0);
    greet(&mut root, AGENT);
    root.host_replaced(HOST, 3);
    root.declare_host_dead(HOST, WHY);
    let died = inbox(&mut root).pop().expect("it is told");
    assert_eq!((died.head.kind, died.head.from.proc), (Kind::Died, AGENT));
    assert_eq!(epoch_of(died.head.rank), 3);
}

#[test]
fn the_end_of_a_session_before_a_replacement_is_ignored() {
    let mut root = agent(ROOT, 0);
    let (link, hello) = greet(&mut root, AGENT);
    root.declare_host_dead(HOST, WHY);
    ends(&mut root);
    root.host_replaced(HOST, 1);
    root.receive(link, gone_reply(&hello).expect("it is a hello"));
    let (link, _) = greet(&mut root, AGENT);
    root.receive(link, gone_reply(&hello).expect("it is a hello"));
    assert_eq!(ends(&mut root), []);
}

#[test]
fn only_a_hello_gets_the_reply_that_the_process_is_gone() {
    let mut root = agent(ROOT, 0);
    let (_, hello) = greet(&mut root, AGENT);
    let reply = gone_reply(&hello).expect("it is a hello");
    assert_eq!(gone_reply(&reply), None);
    assert_eq!(gone_reply(&Frame { tail: hello.tail.slice(1..), ..hello }), None);
}
