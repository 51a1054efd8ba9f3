//! Simulated wires behave like connections: they deliver in order, up to the point where they end.

use mesh_runtime::node::LinkId;
use mesh_sim::net::{Arrival, Net, Packet, WireId};
use mesh_sim::rng::Rng;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::Address;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);
const DIALLER: (u32, LinkId) = (1, LinkId(10));
const LISTENER: (u32, LinkId) = (2, LinkId(20));

fn frame(seq: u64) -> Frame {
    let mut head = Head::new(Kind::Post, Address::default(), Address::default());
    head.seq = seq;
    Frame::bare(head)
}

/// A wire that both ends have accepted.
fn wire() -> (Net, WireId) {
    let mut net = Net::default();
    let opened = net.open(DIALLER, LISTENER.0, Duration::from_micros(100), NOW);
    assert_eq!(net.take(opened.wire, 1), Some((LISTENER.0, None, Packet::Open)));
    net.accepted(opened.wire, LISTENER.1);
    (net, opened.wire)
}

/// The sequence numbers of the frames that arrive at an end; 0 is the end of the wire.
fn arriving(net: &mut Net, wire: WireId, end: usize) -> Vec<u64> {
    std::iter::from_fn(|| net.take(wire, end))
        .map(|(_, _, packet)| match packet {
            Packet::Frame(frame) => frame.head.seq,
            Packet::Close => 0,
            Packet::Open => panic!("the wire was opened before"),
        })
        .collect()
}

fn send(net: &mut Net, seqs: std::ops::Range<u64>) -> Vec<Arrival> {
    let mut rng = Rng::new(1);
    seqs.filter_map(|seq| {
        let jitter = Duration::from_micros(rng.below(1000));
        net.send(DIALLER, frame(seq), jitter, NOW)
    })
    .collect()
}

#[test]
fn frames_keep_their_order_despite_jitter() {
    let (mut net, wire) = wire();
    let arrivals = send(&mut net, 1..20);
    assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
    assert_eq!(arriving(&mut net, wire, 1), (1..20).collect::<Vec<_>>());
}

#[test]
fn a_closed_wire_delivers_the_sent_frames_before_its_close() {
    let (mut net, wire) = wire();
    send(&mut net, 1..4);
    assert!(net.send(LISTENER, frame(9), Duration::ZERO, NOW).is_some());
    assert!(net.close(DIALLER, NOW).is_some());
    assert!(send(&mut net, 4..6).is_empty());
    assert_eq!(arriving(&mut net, wire, 1), [1, 2, 3, 0]);
    assert_eq!(arriving(&mut net, wire, 0), [], "who closes hears nothing more");
}

#[test]
fn a_cut_wire_delivers_a_prefix_to_each_end() {
    for seed in 0..50 {
        let (mut net, wire) = wire();
        send(&mut net, 1..6);
        net.cut(wire, &mut Rng::new(seed), NOW);
        assert!(send(&mut net, 6..9).is_empty());
        let mut at_listener = arriving(&mut net, wire, 1);
        assert_eq!(at_listener.pop(), Some(0));
        assert_eq!(at_listener, (1..=at_listener.len() as u64).collect::<Vec<_>>());
        assert_eq!(arriving(&mut net, wire, 0), [0]);
    }
}

#[test]
fn the_death_of_a_process_closes_all_its_wires() {
    let (mut net, wire) = wire();
    let mut rng = Rng::new(3);
    assert_eq!(net.kill(DIALLER.0, &mut rng, NOW).len(), 1);
    assert_eq!(arriving(&mut net, wire, 1).last(), Some(&0));
    assert!(net.send(LISTENER, frame(1), Duration::ZERO, NOW).is_none());
    assert!(net.wires_of(DIALLER.0).is_empty());
}
