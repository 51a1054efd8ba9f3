//! Long messages from other hosts are received into shared memory, once for all their readers.

use crate::cluster::{Cluster, HEARTBEAT, all_procs, call};
use bytes::Bytes;
use mesh_runtime::node::{CallSpec, Target};
use mesh_wire::frame::{Frame, Part};
use mesh_wire::id::{PortId, ProcId};
use std::os::fd::AsFd;

const PORT: PortId = PortId(1 << 41);
const META: &[u8] = b"meta";
const BODY: &[u8] = b"a body";
const LONG: usize = 1_000_000;

/// Returns two hosts; the second one has two processes with open mailboxes.
fn two_hosts() -> Cluster {
    let mut cluster = Cluster::new(2, 2, 16);
    for slot in 1..=2 {
        cluster.node(1, slot).open_mailbox(PORT, 64);
    }
    cluster
}

/// Returns a call with two parts after its body.
fn long_call(targets: Vec<Target>) -> CallSpec {
    let parts = [
        Part::inline(BODY.len() as u64, LONG as u64),
        Part::inline((BODY.len() + LONG + 64) as u64, 4),
    ];
    let mut tail = META.to_vec();
    tail.extend(parts.iter().flat_map(Part::encode));
    tail.extend_from_slice(BODY);
    tail.extend((0..LONG).map(|at| (at % 251) as u8));
    tail.extend_from_slice(&[0; 64]);
    tail.extend_from_slice(b"tail");
    let mut spec = call(targets, PORT, tail.into());
    (spec.meta_len, spec.part_count) = (META.len() as u16, 2);
    spec
}

fn messages(cluster: &mut Cluster, slot: u32) -> Vec<Frame> {
    let mut messages = Vec::new();
    let taken = cluster.node(1, slot).take_messages(PORT, 9, &mut messages);
    taken.expect("the mailbox is open");
    messages
}

#[test]
fn readers_on_one_host_share_the_bytes_in_a_segment_of_its_agent() {
    let mut cluster = two_hosts();
    let pool = cluster.add_pool(1);
    cluster.root().call(&long_call(all_procs(1..2, 2))).expect("there is space");
    cluster.run();
    for slot in 1..=2 {
        let [message] = &messages(&mut cluster, slot)[..] else { panic!("one message is there") };
        assert_eq!((message.meta(), &message.body()[..]), (META, BODY));
        let parts: Vec<Part> = message.parts().collect();
        let places: Vec<_> = parts.iter().map(|part| (part.owner, part.offset, part.len)).collect();
        let agent = ProcId::new(1, 0);
        assert_eq!(places, [(agent, 0, LONG as u64), (agent, (LONG + 64) as u64, 4)]);
        assert!(pool.is_referenced(parts[0].segment, parts[0].generation));
        cluster.node(1, slot).release(agent, parts[0].segment, parts[0].generation);
        cluster.run();
    }
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn directly_received_bytes_equal_the_sent_bytes() {
    let pool = std::sync::Arc::new(mesh_runtime::segment::SegmentPool::new(
        ProcId::new(1, 0),
        mesh_runtime::segment::SegmentLimits::default(),
    ));
    let sent: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
    for _ in 0..3 {
        // Pieces of odd lengths, one of which overtakes another; later rounds write to warm pages.
        let receive = pool.begin_direct_receive(LONG);
        let piece = |from: usize, to: usize| Bytes::copy_from_slice(&sent[from..to]);
        assert!(!receive.write(0, piece(0, 333)));
        assert!(!receive.write(70_001, piece(70_001, 500_000)));
        assert!(!receive.write(333, piece(333, 70_001)));
        assert!(receive.write(500_000, piece(500_000, LONG)));
        let reader = ProcId::new(1, 1);
        let mesh_runtime::segment::ReceiveResult::Shared(filled) = receive.finish(&[reader]) else {
            panic!("there is space in the pool")
        };
        let mut got = vec![0; LONG];
        let read = rustix::io::pread(filled.fd.as_fd(), &mut got, 0);
        assert_eq!((read, got == sent), (Ok(LONG), true));
        pool.release(filled.segment, filled.generation, reader);
    }
    assert_eq!((pool.stats().segments, pool.stats().fills_warm), (1, 2));
}

#[test]
fn messages_after_a_long_message_are_delivered_after_it() {
    let mut cluster = two_hosts();
    cluster.add_pool(1);
    cluster.seed = 5;
    cluster.root().call(&long_call(all_procs(1..2, 2))).expect("there is space");
    let short = call(all_procs(1..2, 2), PORT, Bytes::from_static(b"short"));
    cluster.root().call(&short).expect("there is space");
    cluster.run();
    for slot in 1..=2 {
        let lens: Vec<bool> =
            messages(&mut cluster, slot).iter().map(|m| m.tail.len() > 9).collect();
        assert_eq!(lens, [true, false]);
    }
}

#[test]
fn the_death_of_the_sender_releases_the_received_part() {
    let mut cluster = two_hosts();
    let pool = cluster.add_pool(1);
    // Longer than the bytes in flight at any time.
    let mut spec = long_call(all_procs(1..2, 2));
    spec.tail = [&spec.tail[..], &vec![0; 8 * LONG]].concat().into();
    cluster.root().call(&spec).expect("there is space");
    while pool.stats().bytes_in_use == 0 {
        assert!(cluster.step(), "the first piece comes");
    }
    cluster.kill(0);
    cluster.pass(HEARTBEAT * 5);
    assert!(cluster.node(1, 0).is_host_dead(mesh_wire::id::HostId(0)));
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn a_message_without_parts_is_not_received_directly() {
    let mut cluster = two_hosts();
    let pool = cluster.add_pool(1);
    let body = Bytes::from(vec![7; LONG]);
    cluster.root().call(&call(all_procs(1..2, 2), PORT, body.clone())).expect("there is space");
    cluster.run();
    assert_eq!(pool.stats().fills, 0);
    assert_eq!(messages(&mut cluster, 1)[0].tail, body);
}
