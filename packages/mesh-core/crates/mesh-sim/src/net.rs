//! The connections of a world: each preserves order, has a latency, and may break.

use crate::message::Life;
use crate::rng::Rng;
use mesh_runtime::hash::FastMap;
use mesh_runtime::node::LinkId;
use mesh_wire::frame::Frame;
use std::collections::VecDeque;
use std::time::Duration;

/// The id of a connection, which is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WireId(pub u32);

/// An item in transit in one direction of a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A new connection, delivered to the listener.
    Open,
    /// One frame.
    Frame(Frame),
    /// The end of the connection; nothing follows it.
    Close,
}

/// One end of a wire.
#[derive(Clone, Copy, Debug)]
struct End {
    life: Life,
    /// `None` until the listener has accepted, and after this end was closed.
    link: Option<LinkId>,
    /// The arrival time of the last packet sent to this end.
    last_arrival: Duration,
    /// Whether sending to this end has become impossible.
    is_cut: bool,
}

#[derive(Debug)]
struct Wire {
    ends: [End; 2],
    /// The packets in transit to each end.
    directions: [VecDeque<Packet>; 2],
    latency: Duration,
}

/// All wires of a world.
#[derive(Debug, Default)]
pub struct Net {
    wires: FastMap<u32, Wire>,
    opened: u32,
    by_link: FastMap<(Life, u32), (WireId, usize)>,
    by_life: FastMap<Life, Vec<WireId>>,
}

/// The arrival of a packet at an end of a wire.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The arrival time.
    pub at: Duration,
    /// The wire.
    pub wire: WireId,
    /// The end: 0 is the dialler, 1 the listener.
    pub end: usize,
}

impl Net {
    /// Connects two processes. The first packet to the listener is [`Packet::Open`].
    pub fn open(
        &mut self,
        dialler: (Life, LinkId),
        listener: Life,
        latency: Duration,
        now: Duration,
    ) -> Arrival {
        self.opened += 1;
        let id = WireId(self.opened);
        let end = |life, link| End { life, link, last_arrival: now, is_cut: false };
        let ends = [end(dialler.0, Some(dialler.1)), end(listener, None)];
        self.wires.insert(id.0, Wire { ends, directions: Default::default(), latency });
        self.by_link.insert((dialler.0, dialler.1.0), (id, 0));
        for life in [dialler.0, listener] {
            self.by_life.entry(life).or_default().push(id);
        }
        self.enqueue(id, 1, Packet::Open, Duration::ZERO, now).expect("the wire is new")
    }

    /// Records that the listener has accepted the connection.
    pub fn accepted(&mut self, wire: WireId, link: LinkId) {
        let Some(entry) = self.wires.get_mut(&wire.0) else { return };
        entry.ends[1].link = Some(link);
        self.by_link.insert((entry.ends[1].life, link.0), (wire, 1));
    }

    /// Sends a frame over a link. Returns `None` if the wire is cut, because the frame is lost.
    pub fn send(
        &mut self,
        from: (Life, LinkId),
        frame: Frame,
        jitter: Duration,
        now: Duration,
    ) -> Option<Arrival> {
        let (wire, end) = *self.by_link.get(&(from.0, from.1.0))?;
        self.enqueue(wire, 1 - end, Packet::Frame(frame), jitter, now)
    }

    /// Closes one end. Packets that it sent still arrive; packets in transit to it are dropped.
    pub fn close(&mut self, side: (Life, LinkId), now: Duration) -> Option<Arrival> {
        let (wire, end) = self.by_link.remove(&(side.0, side.1.0))?;
        self.close_end(wire, end, usize::MAX, now)
    }

    /// Removes a process with all its ends. Some of the packets that it sent last may be lost.
    pub fn kill(&mut self, life: Life, rng: &mut Rng, now: Duration) -> Vec<Arrival> {
        self.remove(life, now, |sent| rng.below(sent as u64 + 1) as usize)
    }

    /// Closes all ends of a process that exits; everything that it sent still arrives.
    pub fn leave(&mut self, life: Life, now: Duration) -> Vec<Arrival> {
        self.remove(life, now, |sent| sent)
    }

    /// Closes all ends of a process. `kept` returns how many of the packets in transit arrive.
    fn remove(
        &mut self,
        life: Life,
        now: Duration,
        mut kept: impl FnMut(usize) -> usize,
    ) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for id in self.by_life.remove(&life).unwrap_or_default() {
            let Some(wire) = self.wires.get(&id.0) else { continue };
            let end = usize::from(wire.ends[0].life != life);
            if let Some(link) = wire.ends[end].link {
                self.by_link.remove(&(life, link.0));
            }
            let kept = kept(wire.directions[1 - end].len());
            arrivals.extend(self.close_end(id, end, kept, now));
        }
        arrivals
    }

    /// Breaks a wire. In each direction a random prefix of the packets in transit still arrives.
    pub fn cut(&mut self, id: WireId, rng: &mut Rng, now: Duration) -> Vec<Arrival> {
        let Some(wire) = self.wires.get_mut(&id.0) else { return Vec::new() };
        let mut arrivals = Vec::new();
        for end in 0..2 {
            let direction = &mut wire.directions[end];
            if wire.ends[end].is_cut {
                continue;
            }
            direction.truncate(rng.below(direction.len() as u64 + 1) as usize);
            // A listener always sees the connection before its end.
            if end == 1 && wire.ends[1].link.is_none() && direction.is_empty() {
                direction.push_back(Packet::Open);
            }
        }
        for end in 0..2 {
            arrivals.extend(self.enqueue(id, end, Packet::Close, Duration::ZERO, now));
            if let Some(wire) = self.wires.get_mut(&id.0) {
                wire.ends[end].is_cut = true;
            }
        }
        arrivals
    }

    /// Takes the next packet for an end. Also returns the receiving process and its link.
    pub fn take(&mut self, id: WireId, end: usize) -> Option<(Life, Option<LinkId>, Packet)> {
        let wire = self.wires.get_mut(&id.0)?;
        let packet = wire.directions[end].pop_front()?;
        let End { life, link, .. } = wire.ends[end];
        if packet == Packet::Close {
            if let Some(link) = link {
                self.by_link.remove(&(life, link.0));
            }
            wire.ends[1 - end].is_cut = true;
            wire.directions[1 - end].retain(|packet| *packet == Packet::Close);
            if wire.directions[1 - end].is_empty() {
                self.wires.remove(&id.0);
            }
        }
        Some((life, link, packet))
    }

    /// The process at an end.
    pub fn life_at(&self, id: WireId, end: usize) -> Option<Life> {
        self.wires.get(&id.0).map(|wire| wire.ends[end].life)
    }

    /// The wires of one process.
    pub fn wires_of(&mut self, life: Life) -> &[WireId] {
        let wires = &self.wires;
        let Some(ids) = self.by_life.get_mut(&life) else { return &[] };
        ids.retain(|id| wires.contains_key(&id.0));
        ids
    }

    fn close_end(&mut self, id: WireId, end: usize, kept: usize, now: Duration) -> Option<Arrival> {
        let wire = self.wires.get_mut(&id.0)?;
        wire.ends[end].is_cut = true;
        wire.ends[end].link = None;
        wire.directions[end].clear();
        let other = &mut wire.directions[1 - end];
        if wire.ends[1 - end].is_cut {
            // The other side has closed, too, or a break is in transit to it.
            if other.is_empty() {
                self.wires.remove(&id.0);
            }
            return None;
        }
        other.truncate(kept.max(usize::from(end == 0 && wire.ends[1].link.is_none())));
        let arrival = self.enqueue(id, 1 - end, Packet::Close, Duration::ZERO, now);
        if let Some(wire) = self.wires.get_mut(&id.0) {
            wire.ends[1 - end].is_cut = true;
        }
        arrival
    }

    fn enqueue(
        &mut self,
        id: WireId,
        end: usize,
        packet: Packet,
        jitter: Duration,
        now: Duration,
    ) -> Option<Arrival> {
        let wire = self.wires.get_mut(&id.0)?;
        if wire.ends[end].is_cut {
            return None;
        }
        let at = (now + wire.latency + jitter).max(wire.ends[end].last_arrival);
        wire.ends[end].last_arrival = at;
        wire.directions[end].push_back(packet);
        Some(Arrival { at, wire: id, end })
    }
}
