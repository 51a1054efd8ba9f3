//! A process that receives arbitrary frames: it neither panics nor uses more memory than its limit.
#![no_main]

use bytes::{BufMut, Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded};
use mesh_runtime::node::{CallSpec, Effect, HostWatch, LinkId, Node, NodeConfig, Target};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, HostId, JobId, PortId, ProcId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const JOB: JobId = JobId([1; 16]);
const TOKEN: [u8; 32] = [2; 32];
const STEPS_MAX: usize = 512;
const LINKS_MAX: usize = 16;
/// An empty process, the growth of its tables in one allocation, and the effects of one step.
const MEMORY_MAX: usize = 512 << 10;
/// Memory for each byte of a frame: a reference to a process creates an entry for the process.
const MEMORY_PER_BYTE: usize = 256;

const KINDS: [Kind; 19] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Ack,
    Kind::Ping,
    Kind::Attach,
    Kind::Attached,
    Kind::Call,
    Kind::Reply,
    Kind::Fault,
    Kind::Cancel,
    Kind::Credit,
    Kind::Post,
    Kind::Spawn,
    Kind::Watch,
    Kind::Died,
    Kind::Segment,
    Kind::Release,
    Kind::Cast,
    Kind::Replies,
];

const PORTS: [PortId; 5] = [
    PortId::NONE,
    PortId::AGENT,
    PortId(PortId::FIRST_FREE + 1),
    PortId((1 << 52) + PortId::FIRST_FREE),
    PortId(u64::MAX),
];

/// One process and its links.
struct World {
    node: Node,
    links: Vec<LinkId>,
    /// The number of the next sequenced frame of each peer, as far as the peer knows.
    sent: HashMap<ProcId, u64>,
    calls: Vec<PortId>,
    now: Duration,
}

fuzz_target!(|bytes: &[u8]| {
    bounded(MEMORY_MAX + MEMORY_PER_BYTE * bytes.len(), || {
        let mut input = Input::new(bytes);
        let mut world = World::new(input.pick(&[(0, 0), (1, 0), (0, 3)]));
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            world.step(&mut input);
            world.carry_out(&mut input);
        }
        world.node.end_all();
        world.carry_out(&mut input);
    });
});

impl World {
    fn new((host, slot): (u32, u32)) -> Self {
        let mut node = Node::new(NodeConfig {
            me: ProcId::new(host, slot),
            incarnation: 1,
            job: JOB,
            token: TOKEN,
            backlog_bytes_max: 1 << 12,
        });
        node.open_mailbox(PORTS[2], 4);
        if slot == 0 {
            node.proc_started(ProcId::new(host, 1), 0);
            let watch = HostWatch {
                heartbeat: Duration::from_secs(1),
                unresponsive_timeout: Duration::from_secs(10),
                exit_report: Bytes::from_static(b"gone"),
                unresponsive: Bytes::from_static(b"unresponsive"),
            };
            node.monitor_host(HostId(1 - host), watch);
        }
        Self {
            node,
            links: Vec::new(),
            sent: HashMap::new(),
            calls: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0 if self.links.len() < LINKS_MAX => {
                let link = self.node.accepted();
                self.links.push(link);
            }
            1 if self.links.len() < LINKS_MAX => {
                let link = self.node.accepted_remote();
                self.links.push(link);
            }
            2 => self.node.dial(proc(input)),
            3 => {
                if let Some(link) = self.link(input) {
                    self.links.retain(|one| *one != link);
                    self.node.link_down(link);
                }
            }
            4 => {
                self.now += Duration::from_millis(u64::from(input.u16()));
                self.node.advance(self.now);
            }
            5 => self.call(input),
            6 => self.take(input),
            7 => {
                let incarnation = u32::from(input.u8());
                self.node.proc_died(proc(input), incarnation, Bytes::from_static(b"died"));
            }
            8 => self.node.proc_started(proc(input), u32::from(input.u8())),
            _ => {
                if let Some(link) = self.link(input) {
                    let frame = self.frame(input, link);
                    self.node.note_activity(link);
                    self.node.receive(link, frame);
                }
            }
        }
    }

    fn link(&self, input: &mut Input<'_>) -> Option<LinkId> {
        let at = usize::from(input.u8());
        self.links.get(at % self.links.len().max(1)).copied()
    }

    /// Returns an arbitrary frame; in most cases one that a peer on this link could send.
    fn frame(&mut self, input: &mut Input<'_>, link: LinkId) -> Frame {
        let (kind, choice) = (input.pick(&KINDS), input.u8());
        let to_proc = if choice & 3 == 0 { proc(input) } else { self.node.me() };
        let mut head = Head::new(kind, address(to_proc, input), address(proc(input), input));
        if kind.is_sequenced() {
            let peer = self.node.peer_of(link).unwrap_or(head.from.proc);
            let sent = self.sent.entry(peer).or_default();
            *sent += u64::from(choice & 0x3C != 0);
            head.seq = if choice & 0x40 == 0 { *sent } else { input.u64() };
        }
        (head.flags, head.hops) = (input.u8(), input.u8());
        head.rank = if choice & 0x80 == 0 { u32::from(input.u8()) } else { input.u32() };
        head.ack = if choice & 0x80 == 0 { u64::from(input.u8()) } else { input.u64() };
        let tail = match kind {
            Kind::Hello | Kind::Welcome => {
                head.to.port = PortId::NONE;
                greeting(input)
            }
            _ => {
                let len = usize::from(input.u8());
                Bytes::copy_from_slice(input.take(len))
            }
        };
        let (encoded, tail_len) = (head.encode(tail.len()), tail.len());
        if input.u8() & 7 == 0 {
            (head.meta_len, head.part_count) = (u16::from(input.u8()), input.u8() % 4);
        }
        // A frame that the decoder rejects never reaches a node.
        let is_sound = Head::decode(&head.encode(tail_len)).is_ok();
        let sound = Head::decode(&encoded).expect("it has neither meta nor parts").0;
        Frame { head: if is_sound { head } else { sound }, tail }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let targets: Arc<[Target]> =
            (0..u32::from(input.u8() % 4)).map(|rank| Target { proc: proc(input), rank }).collect();
        let spec = CallSpec {
            kind: input.pick(&[Kind::Call, Kind::Post, Kind::Spawn]),
            targets,
            port: input.pick(&PORTS),
            meta_len: 0,
            part_count: 0,
            tail: Bytes::from_static(b"request"),
            window: u32::from(input.u8()),
            timeout: Some(Duration::from_millis(u64::from(input.u16()))),
        };
        if let Ok(reply_port) = self.node.call(&spec) {
            self.calls.push(reply_port);
        }
    }

    fn take(&mut self, input: &mut Input<'_>) {
        let mut frames = Vec::new();
        let _ = self.node.take_messages(input.pick(&PORTS), usize::from(input.u8()), &mut frames);
        for frame in frames {
            self.node.reply(&frame.head, input.u8(), (0, 0), Bytes::from_static(b"reply"));
        }
        let mut replies = Vec::new();
        match self.calls.pop() {
            Some(reply_port) if input.u8() % 2 == 0 => drop(self.node.cancel(reply_port)),
            Some(reply_port) => drop(self.node.take_replies(reply_port, &mut replies)),
            None => {}
        }
    }

    /// Carries out the effects of the node, like an engine.
    fn carry_out(&mut self, input: &mut Input<'_>) {
        let effects: Vec<Effect> = self.node.effects().collect();
        for effect in effects {
            match effect {
                Effect::Close { link } => self.links.retain(|one| *one != link),
                Effect::Transmit { frame, .. } => {
                    let (head, tail) = (&frame.head, &frame.tail);
                    assert!(Head::decode(&head.encode(tail.len())).is_ok(), "it can be read");
                    if matches!(head.kind, Kind::Hello | Kind::Welcome) {
                        // It contains the sequence number after which the peer has to continue.
                        let received = tail.last_chunk().expect("a greeting is long");
                        self.sent.insert(head.to.proc, u64::from_le_bytes(*received));
                    }
                }
                Effect::Probe(host) => {
                    let ago = (input.u8() & 1 == 0).then_some(Duration::ZERO);
                    self.node.probed(host, ago);
                }
                Effect::Connect { peer, .. } if self.links.len() < LINKS_MAX => {
                    match input.u8() % 3 {
                        0 => self.node.connect_failed(peer),
                        1 => {
                            let link = self.node.connected(peer);
                            self.links.push(link);
                        }
                        // The attempt to connect continues.
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns a process; in most cases one with a low host and slot number.
fn proc(input: &mut Input<'_>) -> ProcId {
    let choice = input.u8();
    if choice == 255 {
        return ProcId::new(input.u32(), input.u32());
    }
    ProcId::new(u32::from(choice >> 2 & 3), u32::from(choice & 3))
}

fn address(proc: ProcId, input: &mut Input<'_>) -> Address {
    let port = input.u8();
    let port =
        if port == 255 { PortId(input.u64()) } else { PORTS[usize::from(port) % PORTS.len()] };
    Address { proc, port }
}

/// Returns the body of a hello or welcome; in most cases of the right job.
fn greeting(input: &mut Input<'_>) -> Bytes {
    let choice = input.u8();
    let mut tail = BytesMut::new();
    tail.put_slice(if choice & 7 == 7 { &[9; 16] } else { &JOB.0 });
    tail.put_slice(if choice & 0x38 == 0x38 { &[9; 32] } else { &TOKEN });
    tail.put_u32_le(if choice & 0x40 == 0 { u32::from(input.u8() % 4) } else { input.u32() });
    tail.put_u32_le(u32::from(input.u8() % 3));
    tail.put_u64_le(if choice & 0x80 == 0 { u64::from(input.u8()) } else { input.u64() });
    tail.freeze()
}
