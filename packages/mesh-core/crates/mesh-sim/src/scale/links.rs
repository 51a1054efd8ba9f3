//! How long a frame takes: the links between hosts, and the work of a process on each frame.

/// What links and processes cost. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    /// What tables call it.
    pub name: &'static str,
    /// From one process of a host to another.
    pub local_ns: u64,
    /// Between hosts of one rack.
    pub rack_ns: u64,
    /// Between hosts of different racks.
    pub between_ns: u64,
    /// Hosts in a rack.
    pub rack_hosts: u32,
    /// What a host can send, and what it can receive; 0 is without limit.
    pub bytes_per_s: u64,
    /// The work on frames.
    pub work: Work,
}

/// What a process spends on a frame; it does one thing after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// To read a frame, decrypt it and handle it.
    pub receive_ns: u64,
    /// To encrypt and write a frame.
    pub send_ns: u64,
    /// For each 1,024 bytes of either, besides.
    pub kib_ns: u64,
    /// To run an endpoint.
    pub endpoint_ns: u64,
}

/// What the engine needs for a frame, rounded up: a system call, a record of TLS, the node.
pub const WORK: Work = Work { receive_ns: 4000, send_ns: 4000, kib_ns: 400, endpoint_ns: 10_000 };

const FREE: Work = Work { receive_ns: 0, send_ns: 0, kib_ns: 0, endpoint_ns: 0 };

/// 50 us between any two hosts, 25 Gbit/s.
pub const FLAT: Links = Links {
    name: "flat",
    local_ns: 8000,
    rack_ns: 50_000,
    between_ns: 50_000,
    rack_hosts: 1,
    bytes_per_s: 25_000_000_000 / 8,
    work: WORK,
};

/// All that are built in; the first is the default.
pub const ALL: [Links; 4] = [
    FLAT,
    // 10 us in a rack of 40, 50 us between racks.
    Links { name: "racks", rack_ns: 10_000, rack_hosts: 40, ..FLAT },
    // 1 Gbit/s.
    Links { name: "thin", bytes_per_s: 1_000_000_000 / 8, ..FLAT },
    // Nothing but the time of flight: no fanout can be faster than here.
    Links { name: "flight", local_ns: 0, bytes_per_s: 0, work: FREE, ..FLAT },
];

impl Links {
    /// The model of a name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|links| links.name == name)
    }

    /// How long the first bit travels between two hosts.
    pub fn flight_ns(&self, from: u32, to: u32) -> u64 {
        if from == to {
            self.local_ns
        } else if from / self.rack_hosts == to / self.rack_hosts {
            self.rack_ns
        } else {
            self.between_ns
        }
    }

    /// How long the port of a host is busy with this many bytes.
    pub fn wire_ns(&self, bytes: u64) -> u64 {
        match self.bytes_per_s {
            0 => 0,
            per_s => bytes * 1_000_000_000 / per_s,
        }
    }
}

impl Work {
    /// What it costs to take a frame in.
    pub fn receiving(&self, bytes: u64) -> u64 {
        self.receive_ns + bytes * self.kib_ns / 1024
    }

    /// What it costs to send a frame.
    pub fn sending(&self, bytes: u64) -> u64 {
        self.send_ns + bytes * self.kib_ns / 1024
    }
}
