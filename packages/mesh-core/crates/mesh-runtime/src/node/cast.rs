//! Casts: one frame for all ranks of a host, and one combined reply from them.
//!
//! The caller describes its targets. The agent of each host delivers the message to the targets on
//! its host and collects their replies. Collected replies wait for the others for a short, limited
//! time, so that a slow rank does not delay the replies of the other ranks.

use super::batch_timer::BatchTimer;
use super::call::{CallSpec, Target};
use super::{Node, Port};
use crate::cast::bundle::{Entry, Packer, unpack};
use crate::cast::{CastHeader, Group, Merge, Progress};
use crate::fault;
use crate::hash::FastMap;
use crate::mailbox::Closed;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind, TAIL_LEN_MAX};
use mesh_wire::id::{Address, HostId, PortId, ProcId};
use std::time::Duration;

/// Flag of a [`Kind::Cast`] frame: the agent that receives it has to distribute it.
const DISTRIBUTE: u8 = 1;
/// The longest reply that is combined with others: combining longer ones saves nothing.
const ENTRY_LEN_MAX: usize = 32 << 10;

/// Replies that are being collected.
#[derive(Debug, Default)]
pub(super) struct Gathers {
    /// By caller.
    open: FastMap<Address, Gather>,
    /// The timer of the collected replies.
    batch_timer: BatchTimer,
}

/// The replies of this host to one cast.
#[derive(Debug)]
struct Gather {
    port: PortId,
    ranks: Vec<(u32, u32)>,
    merge: Merge<Entry>,
    /// The host through which the cast arrived.
    parent: Option<HostId>,
}

impl Gathers {
    /// Whether something started to wait after the time was last advanced.
    pub(super) fn is_untimed(&self) -> bool {
        self.batch_timer.is_untimed()
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.batch_timer.next_due()
    }
}

impl Node {
    /// Sends a message to targets on other hosts, one frame for each host.
    pub(super) fn cast(
        &mut self,
        spec: &CallSpec,
        reply_port: PortId,
        is_merged: bool,
        targets: &[Target],
    ) {
        let header = CastHeader {
            kind: spec.kind,
            is_merged,
            meta_len: spec.meta_len,
            part_count: spec.part_count,
            port: spec.port,
            groups: Group::all(targets.iter().copied()),
        };
        let from = Address { proc: self.config.me, port: reply_port };
        if self.config.me.slot == 0 {
            return self.distribute_cast(from, &header, &spec.tail);
        }
        let agent = self.config.me.host.agent();
        let mut head = Head::new(Kind::Cast, Address { proc: agent, port: PortId::NONE }, from);
        head.flags = DISTRIBUTE;
        let tail = [&header.encode()[..], &spec.tail[..]].concat().into();
        self.dispatch(Frame { head, tail });
    }

    fn distribute_cast(&mut self, caller: Address, header: &CastHeader, message: &Bytes) {
        let hosts: Vec<HostId> =
            header.hosts().into_iter().filter(|host| *host != self.config.me.host).collect();
        for host in &hosts {
            // Agents detect the deaths of other agents anyway.
            for (slot, _) in header.on(*host).filter(|(slot, _)| *slot + caller.proc.slot > 0) {
                let watcher = Address { proc: caller.proc, port: PortId::AGENT };
                self.failure_detector.add_watcher(ProcId { host: *host, slot }, watcher);
            }
        }
        let (dead, hosts): (Vec<HostId>, Vec<HostId>) =
            hosts.into_iter().partition(|host| self.failure_detector.exit_report(*host).is_some());
        for host in dead {
            for (slot, _) in header.on(host) {
                self.peer(ProcId { host, slot }).is_watched = false;
            }
            let detail = self.failure_detector.exit_report(host).cloned().unwrap_or_default();
            let closed = Closed { code: fault::HOST_DIED, detail };
            self.refuse_ranks(header, host, caller, &closed);
        }
        let head = Head::new(Kind::Cast, Address::default(), caller);
        let (moving, hosts): (Vec<HostId>, Vec<HostId>) =
            hosts.into_iter().partition(|host| self.held_messages.holds(*host));
        if !moving.is_empty() {
            let tail: Bytes = [&header.encode()[..], &message[..]].concat().into();
            for host in moving {
                let to = Address { proc: host.agent(), port: PortId::NONE };
                let frame = Frame { head: Head { to, ..head }, tail: tail.clone() };
                self.held_messages.push(host, frame);
            }
        }
        self.send_to_hosts(&hosts, head, header.encode(), message.clone());
    }

    /// Handles a cast that has arrived at this host: delivers it to the targets.
    pub(super) fn deliver_cast(&mut self, frame: &Frame) {
        let Some((header, message)) = CastHeader::decode(&frame.tail) else { return };
        let caller = frame.head.from;
        let here = self.config.me.host;
        if frame.head.flags & DISTRIBUTE != 0 && caller.proc.host == here {
            return self.distribute_cast(caller, &header, &message);
        }
        let ranks: Vec<(u32, u32)> = header.on(here).collect();
        for (slot, _) in &ranks {
            let watcher = Address { proc: caller.proc, port: PortId::AGENT };
            let mut watch = Head::new(Kind::Watch, Address::default(), watcher);
            watch.rank = *slot;
            self.deliver_watch(&Frame::bare(watch));
        }
        let parent = self.relays.parent(caller);
        if header.is_merged && caller.port != PortId::NONE {
            let merge = Merge::new(ranks.iter().map(|(_, rank)| *rank));
            let gather = Gather { port: header.port, ranks: ranks.clone(), merge, parent };
            self.gathers.open.insert(caller, gather);
        }
        for (slot, rank) in ranks {
            let to = Address { proc: ProcId { host: here, slot }, port: header.port };
            let mut head = Head::new(header.kind, to, caller);
            head.rank = rank;
            (head.meta_len, head.part_count) = (header.meta_len, header.part_count);
            self.dispatch(Frame { head, tail: message.clone() });
        }
    }

    /// Collects a reply to another host with the other replies to the same call.
    ///
    /// Returns the frame if it has to be sent separately.
    pub(super) fn collect_reply(&mut self, frame: Frame) -> Option<Frame> {
        let caller = frame.head.to;
        let Some(gather) = self.gathers.open.get_mut(&caller) else { return Some(frame) };
        let rank = frame.head.rank;
        if !gather.merge.is_open(rank) {
            return Some(frame);
        }
        let is_long = frame.tail.len() > ENTRY_LEN_MAX;
        let progress = if is_long {
            gather.merge.skip_ranks([rank])
        } else {
            gather.merge.add(rank, entry_of(&frame))
        };
        if progress == Progress::Complete {
            self.send_collected(caller);
        } else {
            self.gathers.batch_timer.begin();
        }
        is_long.then_some(frame)
    }

    /// Notes that the caller no longer waits for one rank.
    pub(super) fn stop_collecting_rank(&mut self, frame: &Frame) {
        let caller = frame.head.from;
        let Some(gather) = self.gathers.open.get_mut(&caller) else { return };
        gather.merge.skip_ranks([frame.head.rank]);
        if gather.merge.is_complete() {
            self.gathers.open.remove(&caller);
        }
    }

    /// Sends the collected replies, because a report of the death of `proc` follows.
    ///
    /// Expects no further replies from `proc`.
    pub(super) fn stop_collecting_proc(&mut self, proc: ProcId) {
        if proc.host != self.config.me.host || self.gathers.open.is_empty() {
            return;
        }
        self.send_all_collected();
        self.gathers.open.retain(|_, gather| {
            let dead = gather.ranks.iter().filter(|(slot, _)| *slot == proc.slot);
            gather.merge.skip_ranks(dead.map(|(_, rank)| *rank));
            !gather.merge.is_complete()
        });
    }

    /// Advances the time of the collected replies.
    pub(super) fn flush_due_replies(&mut self, now: Duration) {
        if self.gathers.batch_timer.is_over(now) {
            self.send_all_collected();
        }
    }

    fn send_all_collected(&mut self) {
        self.gathers.batch_timer.end();
        let has_some = |gather: &Gather| gather.merge.collected_count() > 0;
        let open = self.gathers.open.iter().filter(|(_, gather)| has_some(gather));
        let mut callers: Vec<Address> = open.map(|(caller, _)| *caller).collect();
        callers.sort_unstable();
        for caller in callers {
            self.send_collected(caller);
        }
    }

    fn send_collected(&mut self, caller: Address) {
        let Some(gather) = self.gathers.open.get_mut(&caller) else { return };
        let (port, parent) = (gather.port, gather.parent);
        let mut packer = Packer::new(TAIL_LEN_MAX);
        for (_, entry) in gather.merge.take() {
            packer.push(&entry);
        }
        if gather.merge.is_complete() {
            self.gathers.open.remove(&caller);
            if self.gathers.open.is_empty() {
                self.gathers.batch_timer.end();
            }
        }
        let from = Address { proc: self.config.me, port };
        for body in packer.finish() {
            let frame = Frame { head: Head::new(Kind::Replies, caller, from), tail: body };
            self.send_up(parent, frame);
        }
    }

    /// Handles replies of many ranks that have arrived at their caller.
    pub(super) fn deliver_replies(&mut self, frame: &Frame) {
        let Some(Port::Call(call)) = self.ports.get(&frame.head.to.port) else { return };
        let Ok(entries) = unpack(&frame.tail, call.target_count()) else { return };
        let procs: Vec<Option<ProcId>> =
            entries.iter().map(|entry| call.proc_of(entry.rank)).collect();
        for (entry, proc) in entries.into_iter().zip(procs) {
            let Some(proc) = proc.filter(|proc| proc.host == frame.head.from.proc.host) else {
                continue;
            };
            let kind = if entry.is_fault { Kind::Fault } else { Kind::Reply };
            let from = Address { proc, port: frame.head.from.port };
            let mut head = Head::new(kind, frame.head.to, from);
            (head.rank, head.flags) = (entry.rank, entry.flags);
            (head.meta_len, head.part_count) = (entry.meta_len, entry.part_count);
            self.deliver_reply(Frame { head, tail: entry.tail });
        }
    }

    /// Replies with a fault for all ranks that a cast cannot reach.
    pub(super) fn refuse_cast(&mut self, frame: &Frame, closed: &Closed) {
        if let Some((header, _)) = CastHeader::decode(&frame.tail) {
            self.refuse_ranks(&header, frame.head.to.proc.host, frame.head.from, closed);
        }
    }

    fn refuse_ranks(
        &mut self,
        header: &CastHeader,
        host: HostId,
        caller: Address,
        closed: &Closed,
    ) {
        for (slot, rank) in header.on(host).collect::<Vec<_>>() {
            let proc = ProcId { host, slot };
            let mut one = Head::new(header.kind, Address { proc, port: header.port }, caller);
            one.rank = rank;
            self.refuse(&Frame::bare(one), closed);
        }
    }
}

fn entry_of(frame: &Frame) -> Entry {
    let head = &frame.head;
    Entry {
        rank: head.rank,
        is_fault: head.kind == Kind::Fault,
        flags: head.flags,
        meta_len: head.meta_len,
        part_count: head.part_count,
        tail: frame.tail.clone(),
    }
}
