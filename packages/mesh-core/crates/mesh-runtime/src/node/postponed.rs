//! Calls of event loops for which a receiver has no capacity yet.
//!
//! A thread sleeps until there is capacity. An event loop must not sleep, so its call is queued
//! here and sent as soon as every receiver has capacity. Calls to one receiver are sent in the
//! order in which they were made.

use super::Node;
use super::call::{CallSpec, SendError, Target};
use crate::hash::FastMap;
use mesh_wire::frame::{Frame, Head};
use mesh_wire::id::{Address, PortId, ProcId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of calls that wait for capacity.
const CALLS_MAX: usize = 1 << 16;

/// Calls that wait for capacity. If there are none, as in most processes, it takes the space of a
/// pointer.
#[derive(Debug, Default)]
pub(super) struct PostponedCalls(Option<Box<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// By the port of their replies.
    calls: FastMap<PortId, CallSpec>,
    /// The calls to each receiver, oldest first. Ports are numbered in the order of the calls.
    queues: FastMap<Address, VecDeque<PortId>>,
    byte_count: usize,
    /// Receivers that may have capacity for the first call of their queue.
    candidates: Vec<Address>,
}

impl PostponedCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a call to the receiver waits.
    pub(super) fn has_call_to(&self, proc: ProcId, port: PortId) -> bool {
        let receiver = Address { proc, port };
        self.0.as_ref().is_some_and(|waiting| waiting.queues.contains_key(&receiver))
    }

    /// Notes that a receiver may have capacity.
    pub(super) fn note_capacity(&mut self, receiver: Address) {
        if let Some(waiting) = &mut self.0
            && waiting.queues.contains_key(&receiver)
        {
            waiting.candidates.push(receiver);
        }
    }

    /// Notes that any receiver may have capacity.
    pub(super) fn note_capacity_anywhere(&mut self) {
        if let Some(waiting) = &mut self.0 {
            waiting.candidates.extend(waiting.queues.keys());
            waiting.candidates.sort_unstable();
        }
    }

    pub(super) fn has_candidates(&self) -> bool {
        self.0.as_ref().is_some_and(|waiting| !waiting.candidates.is_empty())
    }

    /// Returns the first call to the next receiver that may have capacity.
    fn next(&mut self) -> Option<(PortId, CallSpec)> {
        let waiting = self.0.as_mut()?;
        while let Some(receiver) = waiting.candidates.pop() {
            if let Some(first) = waiting.first(receiver) {
                return Some(first);
            }
        }
        None
    }

    fn has_capacity_for(&self, byte_count: usize, byte_count_max: usize) -> bool {
        self.0.as_ref().is_none_or(|waiting| {
            waiting.byte_count + byte_count <= byte_count_max && waiting.calls.len() < CALLS_MAX
        })
    }

    fn add(&mut self, reply_port: PortId, spec: CallSpec) {
        self.0.get_or_insert_default().add(reply_port, spec);
    }

    /// Removes a call. The next calls to its receivers become candidates.
    fn remove(&mut self, reply_port: PortId) -> Option<CallSpec> {
        let removed = self.0.as_mut()?.remove(reply_port);
        self.0.take_if(|waiting| waiting.calls.is_empty());
        removed
    }

    /// Removes the receivers of a call that are in `proc`; returns them with the call.
    fn remove_targets(&mut self, reply_port: PortId, proc: ProcId) -> Option<CallSpec> {
        let removed = self.0.as_mut()?.remove_targets(reply_port, proc);
        self.0.take_if(|waiting| waiting.calls.is_empty());
        removed
    }

    /// Returns the calls to a process, oldest first.
    fn calls_to(&self, proc: ProcId) -> Vec<PortId> {
        self.0.as_ref().map(|waiting| waiting.calls_to(proc)).unwrap_or_default()
    }
}

impl Waiting {
    fn add(&mut self, reply_port: PortId, spec: CallSpec) {
        self.byte_count += byte_count(&spec);
        for receiver in receivers(&spec) {
            self.queues.entry(receiver).or_default().push_back(reply_port);
        }
        self.calls.insert(reply_port, spec);
    }

    /// Returns the first call to a receiver, unless it has to wait behind one to another receiver.
    fn first(&self, receiver: Address) -> Option<(PortId, CallSpec)> {
        let reply_port = *self.queues.get(&receiver)?.front()?;
        let spec = self.calls.get(&reply_port)?;
        let mut queues = receivers(spec).map(|other| self.queues.get(&other));
        let is_first = queues.all(|queue| queue.and_then(VecDeque::front) == Some(&reply_port));
        is_first.then(|| (reply_port, spec.clone()))
    }

    fn remove(&mut self, reply_port: PortId) -> Option<CallSpec> {
        let spec = self.calls.remove(&reply_port)?;
        self.byte_count -= byte_count(&spec);
        for receiver in receivers(&spec) {
            self.leave_queue(reply_port, receiver);
        }
        Some(spec)
    }

    fn remove_targets(&mut self, reply_port: PortId, proc: ProcId) -> Option<CallSpec> {
        let mut removed = self.remove(reply_port)?;
        let (gone, left): (Vec<Target>, Vec<Target>) =
            removed.targets.iter().partition(|target| target.proc == proc);
        if !left.is_empty() {
            // It keeps its position, because no call was added in between, and queues are ordered.
            let spec = CallSpec { targets: Arc::from(left), ..removed.clone() };
            self.byte_count += byte_count(&spec);
            for receiver in receivers(&spec) {
                let queue = self.queues.entry(receiver).or_default();
                let at = queue.partition_point(|other| *other < reply_port);
                queue.insert(at, reply_port);
                self.candidates.push(receiver);
            }
            self.calls.insert(reply_port, spec);
        }
        removed.targets = Arc::from(gone);
        Some(removed)
    }

    fn leave_queue(&mut self, reply_port: PortId, receiver: Address) {
        let Some(queue) = self.queues.get_mut(&receiver) else { return };
        if let Ok(at) = queue.binary_search(&reply_port) {
            queue.remove(at);
        }
        if queue.is_empty() {
            self.queues.remove(&receiver);
        } else {
            self.candidates.push(receiver);
        }
    }

    fn calls_to(&self, proc: ProcId) -> Vec<PortId> {
        let queues = self.queues.iter().filter(|(receiver, _)| receiver.proc == proc);
        let mut calls: Vec<PortId> = queues.flat_map(|(_, queue)| queue.iter().copied()).collect();
        calls.sort_unstable();
        calls.dedup();
        calls
    }
}

impl Node {
    /// Like [`Node::call`], but if a receiver has no capacity, the call is sent as soon as it has.
    ///
    /// # Errors
    /// [`SendError`] if too many calls or bytes wait already.
    pub fn call_or_postpone(&mut self, spec: &CallSpec) -> Result<PortId, SendError> {
        let refused = match self.call(spec) {
            Ok(reply_port) => return Ok(reply_port),
            Err(refused) => refused,
        };
        if !self.postponed.has_capacity_for(byte_count(spec), self.config.backlog_bytes_max) {
            return Err(refused);
        }
        let (reply_port, _) = self.open_call(spec);
        self.postponed.add(reply_port, spec.clone());
        Ok(reply_port)
    }

    /// Sends the postponed calls whose receivers all have capacity.
    pub(super) fn send_postponed(&mut self) {
        while let Some((reply_port, spec)) = self.postponed.next() {
            if self.admit_or_request_ack(&spec).is_err() {
                continue;
            }
            self.postponed.remove(reply_port);
            let subject = self.subject_of(&spec);
            self.send_all(&spec, reply_port, true, subject);
        }
    }

    /// Drops a call that was not sent; returns `false` if it was sent.
    pub(super) fn withdraw_postponed(&mut self, reply_port: PortId) -> bool {
        let Some(spec) = self.postponed.remove(reply_port) else { return false };
        self.discard_unsent(&spec, reply_port);
        true
    }

    /// Drops the postponed calls to a process that has died.
    pub(super) fn drop_postponed_to(&mut self, proc: ProcId) {
        for reply_port in self.postponed.calls_to(proc) {
            if let Some(dropped) = self.postponed.remove_targets(reply_port, proc) {
                self.discard_unsent(&dropped, reply_port);
            }
        }
    }

    fn discard_unsent(&mut self, spec: &CallSpec, reply_port: PortId) {
        let from = Address { proc: self.config.me, port: reply_port };
        for target in spec.targets.iter() {
            let frame = Frame { head: head_of(spec, *target, from), tail: spec.tail.clone() };
            self.discard(&frame);
        }
    }
}

/// Returns the head of a message to one of its receivers.
pub(super) fn head_of(spec: &CallSpec, target: Target, from: Address) -> Head {
    let mut head = Head::new(spec.kind, Address { proc: target.proc, port: spec.port }, from);
    head.rank = target.rank;
    (head.meta_len, head.part_count) = (spec.meta_len, spec.part_count);
    head
}

fn receivers(spec: &CallSpec) -> impl Iterator<Item = Address> + '_ {
    spec.targets.iter().map(|target| Address { proc: target.proc, port: spec.port })
}

/// The number of bytes that a call keeps in memory until it is sent.
fn byte_count(spec: &CallSpec) -> usize {
    let Some(target) = spec.targets.first() else { return 0 };
    let head = head_of(spec, *target, Address::default());
    let frame = Frame { head, tail: spec.tail.clone() };
    let shared = frame.parts().filter(|part| part.segment_ref().is_some()).map(|part| part.len);
    spec.tail.len() + usize::try_from(shared.sum::<u64>()).unwrap_or(usize::MAX)
}
