//! The connections of a large world, and the ports of its hosts that they share.
//!
//! A host sends one frame after the other through its port, and takes in one after the other. The
//! connections of one host to itself use no port.

use super::links::Links;
use crate::message::Life;

/// One connection.
pub type WireId = u32;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
struct End {
    life: Life,
    host: u32,
    /// Its number in the process; 0 until the listener has accepted.
    link: u32,
    /// Nothing goes in or out any more.
    is_closed: bool,
}

#[derive(Debug)]
struct Wire {
    ends: [End; 2],
    /// What came to each end.
    counts: [Count; 2],
}

/// Frames and their bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Count {
    /// Frames.
    pub frames: u64,
    /// Bytes, heads included.
    pub bytes: u64,
}

/// When the port of a host is free again.
#[derive(Clone, Copy, Default, Debug)]
struct Port {
    out_at: u64,
    in_at: u64,
}

/// All connections.
#[derive(Debug)]
pub struct Fabric {
    links: Links,
    wires: Vec<Wire>,
    ports: Vec<Port>,
}

/// What links between hosts carried.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Load {
    /// On all of them together.
    pub total: Count,
    /// In one direction of the busiest one.
    pub busiest: Count,
    /// Out of the busiest host.
    pub busiest_host: Count,
    /// Links that carried anything.
    pub used: u64,
}

impl Fabric {
    /// Hosts without connections.
    pub fn new(links: Links, hosts: u32) -> Self {
        Self { links, wires: Vec::new(), ports: vec![Port::default(); hosts as usize] }
    }

    /// Connects two processes, each given with its host; returns when the listener sees it.
    pub fn open(
        &mut self,
        dialler: (Life, u32, u32),
        listener: (Life, u32),
        now: u64,
    ) -> (WireId, u64) {
        let end = |life, host, link| End { life, host, link, is_closed: false };
        let ends = [end(dialler.0, dialler.1, dialler.2), end(listener.0, listener.1, 0)];
        let id = self.wires.len() as WireId;
        self.wires.push(Wire { ends, counts: [Count::default(); 2] });
        (id, now + self.links.flight_ns(dialler.1, listener.1))
    }

    /// The listener has taken the connection.
    pub fn accepted(&mut self, wire: WireId, link: u32) {
        self.wires[wire as usize].ends[1].link = link;
    }

    /// Which end of a wire a process has.
    pub fn end_of(&self, wire: WireId, life: Life) -> usize {
        usize::from(self.wires[wire as usize].ends[0].life != life)
    }

    /// Whether it ends on another host.
    pub fn is_far(&self, wire: WireId) -> bool {
        let [one, other] = &self.wires[wire as usize].ends;
        one.host != other.host
    }

    /// The process at an end and its number for the link; nothing when the end is closed.
    pub fn at_end(&self, wire: WireId, end: usize) -> Option<(Life, u32)> {
        let End { life, link, is_closed, .. } = self.wires[wire as usize].ends[end];
        (!is_closed).then_some((life, link))
    }

    /// Closes an end; false when it was closed.
    pub fn close(&mut self, wire: WireId, end: usize) -> bool {
        !std::mem::replace(&mut self.wires[wire as usize].ends[end].is_closed, true)
    }

    /// Sends bytes out of an end, ready at a time; returns when their first bit arrives.
    pub fn send(&mut self, wire: WireId, from: usize, bytes: u64, ready_at: u64) -> u64 {
        let wire = &mut self.wires[wire as usize];
        let (here, there) = (wire.ends[from].host, wire.ends[1 - from].host);
        let count = &mut wire.counts[1 - from];
        count.frames += 1;
        count.bytes += bytes;
        let flight = self.links.flight_ns(here, there);
        if here == there {
            return ready_at + flight;
        }
        let port = &mut self.ports[here as usize];
        let begun = ready_at.max(port.out_at);
        port.out_at = begun + self.links.wire_ns(bytes);
        begun + flight
    }

    /// The first bit is there; returns when the last one is.
    pub fn land(&mut self, wire: WireId, end: usize, bytes: u64, now: u64) -> u64 {
        let ends = &self.wires[wire as usize].ends;
        if ends[0].host == ends[1].host {
            return now;
        }
        let port = &mut self.ports[ends[end].host as usize];
        port.in_at = now.max(port.in_at) + self.links.wire_ns(bytes);
        port.in_at
    }

    /// Gives back memory that no connection needs.
    pub fn trim(&mut self) {
        self.wires.shrink_to_fit();
    }

    /// What links between hosts have carried since this was asked last.
    pub fn take_load(&mut self) -> Load {
        let mut load = Load::default();
        let mut out = vec![Count::default(); self.ports.len()];
        for wire in &mut self.wires {
            let counts = std::mem::take(&mut wire.counts);
            if wire.ends[0].host == wire.ends[1].host {
                continue;
            }
            load.used += u64::from(counts != [Count::default(); 2]);
            for (end, count) in counts.into_iter().enumerate() {
                load.total.add(count);
                out[wire.ends[1 - end].host as usize].add(count);
                load.busiest = load.busiest.max(count);
            }
        }
        load.busiest_host = out.into_iter().fold(Count::default(), Count::max);
        load
    }
}

impl Count {
    fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }

    /// The larger of each.
    fn max(self, other: Self) -> Self {
        let (frames, bytes) = (self.frames.max(other.frames), self.bytes.max(other.bytes));
        Self { frames, bytes }
    }
}
