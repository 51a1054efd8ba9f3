//! The ring of events, and its records as specified in `docs/protocol/events.md`.

use mesh_runtime::events::{
    Event, EventKind, Events, NAME_LEN_MAX, NAMES_MAX, RECORD_LEN, Subject,
};
use mesh_runtime::origin::{SENDER_LEN, TRACED_LEN, with_origin};
use mesh_wire::frame::{Head, Kind};
use mesh_wire::id::{Address, PortId, ProcId};
use std::time::Duration;

fn event(rank: u32) -> Event {
    Event {
        at: Duration::from_nanos(0x0102),
        kind: EventKind::Answered,
        port: PortId(0x11),
        peer: ProcId::new(2, 3),
        call: PortId(0x22),
        rank,
        code: 7,
        len: 0x33,
        subject: Subject { sender: PortId(0x44), span: 0x55, endpoint: 0x66 },
    }
}

#[test]
fn a_record_has_the_documented_bytes() {
    let mut golden = [0; RECORD_LEN];
    (golden[0], golden[1]) = (0x02, 0x01);
    golden[8] = 0x11;
    (golden[16], golden[20]) = (3, 2);
    golden[24] = 0x22;
    golden[32] = 0x33;
    golden[40] = 9;
    (golden[44], golden[45]) = (4, 7);
    (golden[46], golden[48], golden[56]) = (0x66, 0x44, 0x55);
    assert_eq!(event(9).record(), golden);
}

#[test]
fn a_full_ring_drops_the_oldest_events_and_counts_them() {
    let mut ring = Events::default();
    ring.start(2);
    for rank in 0..5 {
        ring.push(event(rank));
    }
    let (records, dropped) = ring.take(usize::MAX);
    let ranks: Vec<u8> = records.chunks(RECORD_LEN).map(|record| record[40]).collect();
    assert_eq!((ranks, dropped), (vec![3, 4], 3));
    assert_eq!(ring.take(usize::MAX), (Vec::new(), 0));
}

#[test]
fn a_stopped_ring_is_off_and_empty() {
    let mut ring = Events::default();
    assert!(!ring.is_on());
    ring.start(2);
    ring.push(event(0));
    ring.stop();
    assert!(!ring.is_on());
    assert_eq!(ring.take(usize::MAX), (Vec::new(), 0));
}

#[test]
fn early_events_are_available_to_the_first_subscriber() {
    let mut ring = Events::default();
    ring.start_early(2);
    ring.push(event(0));
    ring.start(4);
    (1..4).for_each(|rank| ring.push(event(rank)));
    assert_eq!(ring.take(usize::MAX).0.len(), 4 * RECORD_LEN);
    ring.start_early(1);
    (0..2).for_each(|rank| ring.push(event(rank)));
    assert_eq!(ring.take(usize::MAX).0.len(), 2 * RECORD_LEN, "it was on");
}

#[test]
fn a_ring_that_was_started_early_stops_when_it_is_full() {
    let mut ring = Events::default();
    ring.start_early(2);
    (0..2).for_each(|rank| ring.push(event(rank)));
    assert!(ring.is_on());
    ring.push(event(2));
    assert!(!ring.is_on());
    ring.start(2);
    assert_eq!(ring.take(usize::MAX), (Vec::new(), 0));
}

fn head(kind: Kind, port: u64) -> Head {
    let to = Address { proc: ProcId::new(0, 1), port: PortId(port) };
    Head::new(kind, to, Address::default())
}

fn names(ring: &Events, known: usize) -> Vec<&[u8]> {
    ring.endpoints(known).collect()
}

#[test]
fn endpoints_are_numbered_in_the_order_of_their_first_message() {
    let mut ring = Events::default();
    ring.start(1);
    let mut number = |meta: &[u8]| ring.subject(&head(Kind::Call, 16), meta).endpoint;
    let metas: [&[u8]; 4] =
        [b"\x00step\0gpus=2", b"\x02save\0", b"\x00step\0gpus=4", b"\x02save\0"];
    assert_eq!(metas.map(&mut number), [1, 2, 1, 2]);
    assert_eq!(names(&ring, 0), [b"step", b"save"]);
    assert_eq!(names(&ring, 1), [b"save"]);
}

#[test]
fn only_calls_of_actors_have_an_endpoint() {
    let mut ring = Events::default();
    ring.start(1);
    let internal = ring.subject(&head(Kind::Call, 16), b"\x04stop\0");
    let agent = ring.subject(&head(Kind::Call, PortId::AGENT.0), b"stop_actor");
    let post = ring.subject(&head(Kind::Post, 16), b"E");
    let empty = ring.subject(&head(Kind::Call, 16), b"");
    assert_eq!([internal, agent, post, empty], [Subject::default(); 4]);
    assert!(names(&ring, 0).is_empty());
}

#[test]
fn numbers_of_endpoints_outlive_recording_and_engines() {
    let mut ring = Events::default();
    ring.start(1);
    ring.subject(&head(Kind::Call, 16), b"\x00step\0");
    ring.stop();
    assert_eq!(ring.subject(&head(Kind::Call, 16), b"\x00save\0"), Subject::default());
    ring.start(1);
    assert_eq!(ring.subject(&head(Kind::Call, 16), b"\x00save\0").endpoint, 2);
    let mut later = Events::default();
    later.register_endpoints(&names(&ring, 0));
    later.start(1);
    assert_eq!(later.subject(&head(Kind::Call, 16), b"\x00save\0").endpoint, 2);
    assert_eq!(later.subject(&head(Kind::Call, 16), b"\x00load\0").endpoint, 3);
}

#[test]
fn names_of_endpoints_are_bounded() {
    let mut ring = Events::default();
    ring.start(1);
    let call = |name: &str| [b"\0", name.as_bytes(), b"\0"].concat();
    let long = "n".repeat(NAME_LEN_MAX + 1);
    assert_eq!(ring.subject(&head(Kind::Call, 16), &call(&long)).endpoint, 0);
    for number in 0..NAMES_MAX {
        ring.subject(&head(Kind::Call, 16), &call(&number.to_string()));
    }
    assert_eq!(names(&ring, 0).len(), NAMES_MAX);
    assert_eq!(ring.subject(&head(Kind::Call, 16), &call("one more")).endpoint, 0);
    assert_eq!(ring.subject(&head(Kind::Call, 16), &call("7")).endpoint, 8);
}

#[test]
fn a_message_names_its_sender_and_span() {
    let mut origin = [0; TRACED_LEN];
    origin[0] = 0x44;
    origin[24..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut ring = Events::default();
    ring.start(1);
    for (kind, endpoint) in [(Kind::Call, 1), (Kind::Post, 0)] {
        let meta = with_origin(&origin, b"\x00step\0").expect("an origin");
        let sender = PortId(0x44);
        let traced = Subject { sender, span: 0x0102_0304_0506_0708, endpoint };
        assert_eq!(ring.subject(&head(kind, 16), &meta), traced);
        let meta = with_origin(&origin[..SENDER_LEN], b"\x00step\0").expect("an origin");
        let untraced = Subject { sender, span: 0, endpoint };
        assert_eq!(ring.subject(&head(kind, 16), &meta), untraced);
    }
}
