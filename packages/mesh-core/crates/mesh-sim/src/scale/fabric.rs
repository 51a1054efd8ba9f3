//! The connections of a large world, and the network ports of hosts that they share.
//!
//! A host sends one frame at a time through its port, and receives one at a time. Connections
//! within a host use no port.

use super::links::Links;
use crate::message::Life;

/// The id of a connection.
pub type WireId = u32;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
struct End {
    life: Life,
    host: u32,
    /// The number of the link in the process; 0 until the listener has accepted.
    link: u32,
    /// Whether nothing more can be sent or received at this end.
    is_closed: bool,
}

#[derive(Debug)]
struct Wire {
    ends: [End; 2],
    /// The traffic that arrived at each end.
    counts: [Count; 2],
}

/// Number of frames and bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Count {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes, including frame heads.
    pub bytes: u64,
}

/// The times at which the port of a host is free again in each direction.
#[derive(Clone, Copy, Default, Debug)]
struct Port {
    out_at: u64,
    in_at: u64,
}

/// All connections of a world.
#[derive(Debug)]
pub struct Fabric {
    links: Links,
    wires: Vec<Wire>,
    ports: Vec<Port>,
}

/// The traffic on links between hosts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Load {
    /// All links together.
    pub total: Count,
    /// The larger direction of the busiest link.
    pub busiest: Count,
    /// The traffic out of the busiest host.
    pub busiest_host: Count,
    /// Number of links that carried any traffic.
    pub used: u64,
}

impl Fabric {
    /// Creates a fabric without connections.
    pub fn new(links: Links, hosts: u32) -> Self {
        Self { links, wires: Vec::new(), ports: vec![Port::default(); hosts as usize] }
    }

    /// Connects two processes, each given with its host. Returns the time at which the listener
    /// sees the connection.
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

    /// Records that the listener has accepted the connection.
    pub fn accepted(&mut self, wire: WireId, link: u32) {
        self.wires[wire as usize].ends[1].link = link;
    }

    /// The end of a wire that belongs to a process.
    pub fn end_of(&self, wire: WireId, life: Life) -> usize {
        usize::from(self.wires[wire as usize].ends[0].life != life)
    }

    /// Whether the wire connects two hosts.
    pub fn is_far(&self, wire: WireId) -> bool {
        let [one, other] = &self.wires[wire as usize].ends;
        one.host != other.host
    }

    /// The process at an end and its number for the link; `None` if the end is closed.
    pub fn at_end(&self, wire: WireId, end: usize) -> Option<(Life, u32)> {
        let End { life, link, is_closed, .. } = self.wires[wire as usize].ends[end];
        (!is_closed).then_some((life, link))
    }

    /// Closes an end. Returns false if it was already closed.
    pub fn close(&mut self, wire: WireId, end: usize) -> bool {
        !std::mem::replace(&mut self.wires[wire as usize].ends[end].is_closed, true)
    }

    /// Sends bytes from an end that are ready at `ready_at`. Returns the arrival time of the first
    /// bit.
    pub fn send(&mut self, wire: WireId, from: usize, bytes: u64, ready_at: u64) -> u64 {
        let wire = &mut self.wires[wire as usize];
        let (here, there) = (wire.ends[from].host, wire.ends[1 - from].host);
        let count = &mut wire.counts[1 - from];
        count.frames += 1;
        count.bytes += bytes;
        let latency = self.links.flight_ns(here, there);
        if here == there {
            return ready_at + latency;
        }
        let port = &mut self.ports[here as usize];
        let begun = ready_at.max(port.out_at);
        port.out_at = begun + self.links.wire_ns(bytes);
        begun + latency
    }

    /// Receives bytes whose first bit has arrived. Returns the arrival time of the last bit.
    pub fn receive(&mut self, wire: WireId, end: usize, bytes: u64, now: u64) -> u64 {
        let ends = &self.wires[wire as usize].ends;
        if ends[0].host == ends[1].host {
            return now;
        }
        let port = &mut self.ports[ends[end].host as usize];
        port.in_at = now.max(port.in_at) + self.links.wire_ns(bytes);
        port.in_at
    }

    /// Releases memory that no connection needs.
    pub fn trim(&mut self) {
        self.wires.shrink_to_fit();
    }

    /// Returns the traffic on links between hosts since the previous call.
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

    /// The maximum of each field.
    fn max(self, other: Self) -> Self {
        let (frames, bytes) = (self.frames.max(other.frames), self.bytes.max(other.bytes));
        Self { frames, bytes }
    }
}
