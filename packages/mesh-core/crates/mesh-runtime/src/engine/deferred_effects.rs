//! The effects of a step of the node, and their execution after the lock is released.

use super::direct_receives::Piece;
use super::parker::Parker;
use super::waiting::Waiter;
use super::wire::{Descriptors, Wire};
use super::{Engine, Shared};
use crate::node::{BulkId, Effect, LinkId};
use mesh_wire::id::{HostId, PortId, ProcId};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval of the sweep for idle shared memory: memory that was idle for all of it is freed.
pub(super) const SWEEP_PERIOD: Duration = Duration::from_secs(5);

/// The work that remains to be done after the lock is released.
#[derive(Default)]
pub(super) struct DeferredEffects {
    flush: Vec<(LinkId, Arc<Wire>)>,
    pub(super) wake: Vec<(PortId, Waiter)>,
    credited: Vec<Arc<Parker>>,
    dial: Vec<ProcId>,
    closed: Vec<Arc<Wire>>,
    released: Vec<(ProcId, u32, u32)>,
    dead_peers: Vec<ProcId>,
    pieces: Vec<Piece>,
    aborted: Vec<BulkId>,
    probe: Vec<HostId>,
    has_timer: bool,
}

impl Engine {
    /// Carries out the effects of a step of the node, without the lock.
    pub(super) fn finish(&self, deferred: DeferredEffects) {
        for (link, wire) in &deferred.flush {
            self.flush(*link, wire);
        }
        for (port, waiter) in &deferred.wake {
            waiter.wake(*port);
        }
        for parker in &deferred.credited {
            parker.unpark();
        }
        for wire in &deferred.closed {
            self.unwatch(wire);
        }
        for (reader, segment, generation) in &deferred.released {
            self.descriptors.released(*reader, *segment, *generation);
        }
        for proc in &deferred.dead_peers {
            self.descriptors.peer_died(*proc);
        }
        for piece in deferred.pieces {
            self.write_direct(piece);
        }
        for id in deferred.aborted {
            self.direct_receives.abort(id);
        }
        for peer in &deferred.dial {
            self.connect(*peer);
        }
        for host in &deferred.probe {
            self.probe(*host);
        }
        if deferred.has_timer {
            self.wake_io();
        }
    }
}

impl Shared {
    /// Converts the effects of the node to deferred; frames are queued here, in the node's order.
    pub(super) fn collect(
        &mut self,
        deferred: &mut DeferredEffects,
        descriptors: &dyn Descriptors,
    ) {
        deferred.has_timer |= self.node.is_untimed();
        for effect in self.node.effects() {
            match effect {
                Effect::Transmit { link, frame } => {
                    let Some(wire) = self.wires.get(&link) else { continue };
                    wire.push(frame);
                    if deferred.flush.last().is_none_or(|(last, _)| *last != link) {
                        deferred.flush.push((link, Arc::clone(wire)));
                    }
                }
                Effect::Ready(port) => {
                    if let Some(waiter) = self.waiters.get(&port)
                        && deferred.wake.last().is_none_or(|(last, _)| *last != port)
                    {
                        deferred.wake.push((port, waiter.clone()));
                    }
                }
                Effect::Credited => deferred.credited.append(&mut self.credit_waiters),
                Effect::Connect { peer, after } if after.is_zero() => deferred.dial.push(peer),
                Effect::Connect { peer, after } => {
                    self.redials.push(Reverse((Instant::now() + after, peer)));
                    deferred.has_timer = true;
                }
                Effect::Acquired { segment, generation } => {
                    descriptors.acquired(segment, generation)
                }
                Effect::Released { reader, segment, generation } => {
                    deferred.released.push((reader, segment, generation));
                    if self.sweep_at.is_none() {
                        self.sweep_at = Some(Instant::now() + SWEEP_PERIOD);
                        deferred.has_timer = true;
                    }
                }
                Effect::WriteDirect { id, len, at, bytes } => {
                    deferred.pieces.push(Piece { id, len, at, bytes });
                }
                Effect::Abort(id) => deferred.aborted.push(id),
                Effect::PeerDied(proc) => deferred.dead_peers.push(proc),
                Effect::Probe(host) => deferred.probe.push(host),
                Effect::Close { link } => deferred.closed.extend(self.wires.remove(&link)),
            }
        }
    }
}
