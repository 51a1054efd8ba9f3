//! The ring of events, and the bytes of its records as `docs/protocol/events.md` has them.

use mesh_runtime::events::{Event, EventKind, EventRing, RECORD_LEN};
use mesh_wire::id::{PortId, ProcId};
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
    assert_eq!(event(9).record(), golden);
}

#[test]
fn a_full_ring_drops_the_oldest_and_counts() {
    let mut ring = EventRing::default();
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
    let mut ring = EventRing::default();
    assert!(!ring.is_on());
    ring.start(2);
    ring.push(event(0));
    ring.stop();
    assert!(!ring.is_on());
    assert_eq!(ring.take(usize::MAX), (Vec::new(), 0));
}
