//! Casts to several hosts: one frame and one reply per connection, whatever breaks on the way.

use crate::cluster::{Cluster, all_procs, call};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::collections::BTreeMap;
use std::time::Duration;

const ROOT: ProcId = ProcId::new(0, 0);

fn open(cluster: &mut Cluster, hosts: std::ops::Range<u32>, procs: u32) -> PortId {
    let port = cluster.root().new_port();
    for target in all_procs(hosts, procs) {
        cluster.node(target.proc.host.0, target.proc.slot).open_mailbox(port, 64);
    }
    port
}

fn echo(frame: &Frame) -> Bytes {
    Bytes::copy_from_slice(&frame.head.rank.to_le_bytes())
}

#[test]
fn a_cast_and_its_reply_are_one_frame_per_host() {
    let mut cluster = Cluster::new(4, 3, 32);
    let port = open(&mut cluster, 1..4, 3);
    let spec = call(all_procs(1..4, 3), port, Bytes::from_static(b"hello"));
    let reply_port = cluster.root().call(&spec).expect("it is sent");
    cluster.run();
    for host in 1..4 {
        assert_eq!(cluster.sent(0, host, Kind::Cast).0, 1);
        assert_eq!(cluster.sent(0, host, Kind::Call).0, 0);
    }
    for target in all_procs(1..4, 3) {
        let messages = cluster.serve(target.proc, port, echo);
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].tail, "hello");
        assert_eq!(messages[0].head.rank, target.rank);
    }
    cluster.run();
    let (replies, is_all) = cluster.replies(ROOT, reply_port);
    assert!(is_all);
    for (rank, reply) in replies {
        assert_eq!(reply.frame.tail, rank.to_le_bytes()[..]);
        assert_eq!(reply.frame.head.from.proc, all_procs(1..4, 3)[rank as usize].proc);
    }
    for host in 1..4 {
        assert_eq!(cluster.sent(host, 0, Kind::Replies).0, 1);
        assert_eq!(cluster.sent(host, 0, Kind::Reply).0, 0);
    }
}

#[test]
fn a_wide_cast_goes_down_a_tree_and_its_replies_return_in_batches() {
    let mut cluster = Cluster::new(15, 2, 2);
    let port = open(&mut cluster, 1..15, 2);
    let reply_port =
        cluster.root().call(&call(all_procs(1..15, 2), port, Bytes::new())).expect("it is sent");
    cluster.run();
    let casts = |cluster: &Cluster| -> usize {
        (1..15).map(|host| cluster.sent(0, host, Kind::Relay).0).sum()
    };
    assert_eq!(casts(&cluster), 2);
    all_procs(1..15, 2).iter().for_each(|one| drop(cluster.serve(one.proc, port, echo)));
    cluster.run();
    let (replies, is_all) = cluster.replies(ROOT, reply_port);
    assert!(is_all);
    assert_eq!(replies.len(), 28);
    let came = |cluster: &Cluster, kind| -> usize {
        (1..15).map(|host| cluster.sent(host, 0, kind).0).sum()
    };
    assert_eq!((came(&cluster, Kind::Batch), came(&cluster, Kind::Replies)), (2, 0));
}

#[test]
fn a_slow_rank_does_not_delay_the_replies_of_the_others() {
    let mut cluster = Cluster::new(2, 3, 32);
    let port = open(&mut cluster, 1..2, 3);
    let reply_port =
        cluster.root().call(&call(all_procs(1..2, 3), port, Bytes::new())).expect("it is sent");
    cluster.run();
    cluster.serve(ProcId::new(1, 1), port, echo);
    cluster.run();
    cluster.pass(Duration::from_millis(300));
    let (replies, is_all) = cluster.replies(ROOT, reply_port);
    assert_eq!((replies.into_keys().collect::<Vec<_>>(), is_all), (vec![0], false));
    cluster.serve(ProcId::new(1, 2), port, echo);
    cluster.serve(ProcId::new(1, 3), port, echo);
    cluster.run();
    assert_eq!(cluster.replies(ROOT, reply_port).0.len(), 2);
}

#[test]
fn a_long_cast_leaves_each_host_once_and_arrives_whole() {
    let mut cluster = Cluster::new(5, 2, 32);
    let port = open(&mut cluster, 1..5, 2);
    let body: Bytes = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
    let reply_port =
        cluster.root().call(&call(all_procs(1..5, 2), port, body.clone())).expect("it is sent");
    cluster.run();
    for target in all_procs(1..5, 2) {
        let messages = cluster.serve(target.proc, port, echo);
        assert_eq!(messages.len(), 1);
        assert!(messages[0].tail == body, "the body of rank {} is another one", target.rank);
    }
    cluster.run();
    assert!(cluster.replies(ROOT, reply_port).1);
    for host in 0..5 {
        let kinds = [Kind::Relay, Kind::Piece, Kind::Cast];
        let left = (0..5).flat_map(|to| kinds.map(|kind| (to, kind)));
        let bytes: usize = left.map(|(to, kind)| cluster.sent(host, to, kind).1).sum();
        assert!(bytes <= body.len() / 50 * 51, "{bytes} bytes have left host {host}");
    }
}

#[test]
fn a_short_message_does_not_wait_behind_a_long_one() {
    let mut cluster = Cluster::new(2, 2, 32);
    cluster.seed = 1;
    let port = open(&mut cluster, 1..2, 2);
    let other = open(&mut cluster, 1..2, 2);
    let to = |rank: usize| vec![all_procs(1..2, 2)[rank]];
    let long = call(to(0), port, vec![7; 64 << 20].into());
    cluster.root().send(&long).expect("it is sent");
    cluster.root().send(&call(to(0), port, Bytes::from_static(b"behind"))).expect("it is sent");
    cluster.root().send(&call(to(0), other, Bytes::from_static(b"beside"))).expect("it is sent");
    let worker = ProcId::new(1, 1);
    let mut steps = 0;
    while cluster.node(1, 1).mailbox_len(other) == 0 {
        assert!(cluster.step(), "the short message has not come");
        steps += 1;
    }
    assert!(steps < 60, "it took {steps} frames");
    assert_eq!(cluster.node(1, 1).mailbox_len(port), 0);
    cluster.run();
    let tails: Vec<usize> =
        cluster.serve(worker, port, echo).iter().map(|message| message.tail.len()).collect();
    assert_eq!(tails, [64 << 20, 6]);
}

#[test]
fn a_cast_of_an_actor_is_spread_by_the_agent_of_its_host() {
    let mut cluster = Cluster::new(4, 2, 32);
    let port = open(&mut cluster, 0..4, 2);
    for len in [5, 3 << 20] {
        cluster.left.clear();
        let targets = all_procs(0..4, 2);
        let spec = call(targets.clone(), port, vec![1; len].into());
        let reply_port = cluster.node(0, 1).call(&spec).expect("it is sent");
        cluster.run();
        for target in &targets {
            assert_eq!(cluster.serve(target.proc, port, echo).len(), 1);
        }
        cluster.run();
        let (replies, is_all) = cluster.replies(ProcId::new(0, 1), reply_port);
        assert_eq!((replies.len(), is_all), (8, true));
        let up: usize = (1..4).map(|host| cluster.sent(host, 0, Kind::Replies).0).sum();
        assert_eq!(up, 3);
    }
}

#[test]
fn the_death_of_a_process_fails_its_rank_and_no_other() {
    let mut cluster = Cluster::new(3, 3, 32);
    let port = open(&mut cluster, 1..3, 3);
    let reply_port =
        cluster.root().call(&call(all_procs(1..3, 3), port, Bytes::new())).expect("it is sent");
    cluster.run();
    cluster.serve(ProcId::new(1, 1), port, echo);
    cluster.run();
    cluster.kill_proc(ProcId::new(1, 2));
    cluster.run();
    for proc in [(1, 3), (2, 1), (2, 2), (2, 3)] {
        cluster.serve(ProcId::new(proc.0, proc.1), port, echo);
    }
    cluster.run();
    let (replies, is_all) = cluster.replies(ROOT, reply_port);
    assert!(is_all);
    let codes: BTreeMap<u32, u8> = replies.iter().map(|(rank, one)| (*rank, one.code)).collect();
    let expected = [(0, 0), (1, fault::PROC_DIED), (2, 0), (3, 0), (4, 0), (5, 0)];
    assert_eq!(codes, BTreeMap::from(expected));
}

#[test]
fn the_hosts_below_a_dead_one_get_the_cast_and_reply() {
    for len in [0, 3 << 20] {
        let mut cluster = Cluster::new(8, 2, 2);
        let port = open(&mut cluster, 1..8, 2);
        // All hosts have already communicated with their neighbours.
        let spec = call(all_procs(1..8, 2), port, vec![3; len].into());
        cluster.kill(1);
        let reply_port = cluster.root().call(&spec).expect("it is sent");
        for _ in 0..40 {
            cluster.pass(Duration::from_millis(250));
            for target in all_procs(2..8, 2) {
                cluster.serve(target.proc, port, echo);
            }
        }
        let (replies, is_all) = cluster.replies(ROOT, reply_port);
        assert!(is_all, "{} answers for {len} bytes", replies.len());
        for (rank, reply) in replies {
            let expected = if rank < 2 { fault::HOST_DIED } else { 0 };
            assert_eq!(reply.code, expected, "rank {rank}");
        }
    }
}

#[test]
fn order_is_kept_and_nothing_is_duplicated_on_any_route() {
    for seed in 1..60 {
        let mut cluster = Cluster::new(7, 2, 2);
        let port = open(&mut cluster, 1..7, 2);
        cluster.seed = seed;
        cluster.loses_one_in = 20;
        let all = all_procs(1..7, 2);
        let mut sent: BTreeMap<ProcId, Vec<u8>> = BTreeMap::new();
        let mut got: BTreeMap<ProcId, Vec<u8>> = BTreeMap::new();
        for number in 0..40u8 {
            let targets: Vec<_> = match number % 4 {
                0 => all.clone(),
                1 => vec![all[usize::from(number) % all.len()]],
                2 => all.iter().step_by(2).copied().collect(),
                _ => all.iter().rev().take(9).copied().collect(),
            };
            let len = if number % 10 == 5 { 700_000 } else { 8 };
            for target in &targets {
                sent.entry(target.proc).or_default().push(number);
            }
            let spec = call(targets, port, vec![number; len].into());
            cluster.root().send(&spec).expect("it is sent");
            for _ in 0..(seed * 7 + u64::from(number)) % 50 {
                cluster.step();
            }
            if number % 13 == 12 {
                cluster.break_link(0, 1 + u32::from(number) % 6);
            }
            for target in &all {
                let messages = cluster.serve(target.proc, port, echo);
                got.entry(target.proc).or_default().extend(messages.iter().map(|m| m.tail[0]));
            }
        }
        cluster.pass(Duration::from_secs(5));
        for target in &all {
            let messages = cluster.serve(target.proc, port, echo);
            got.entry(target.proc).or_default().extend(messages.iter().map(|m| m.tail[0]));
        }
        assert_eq!(got, sent, "seed {seed}");
    }
}
