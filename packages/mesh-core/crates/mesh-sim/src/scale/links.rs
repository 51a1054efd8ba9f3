//! The cost of a frame: latency and bandwidth between hosts, and CPU time of a process.

/// The costs of links and processes. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    /// The name in tables and on the command line.
    pub name: &'static str,
    /// Latency between two processes of a host.
    pub local_ns: u64,
    /// Latency between hosts of one rack.
    pub rack_ns: u64,
    /// Latency between hosts of different racks.
    pub between_ns: u64,
    /// Number of hosts in a rack.
    pub rack_hosts: u32,
    /// Bandwidth of a host in each direction; 0 is unlimited.
    pub bytes_per_s: u64,
    /// The CPU time for frames.
    pub work: Work,
}

/// The CPU time of a process for a frame. A process handles one frame at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Time to read, decrypt and handle a frame.
    pub receive_ns: u64,
    /// Time to encrypt and write a frame.
    pub send_ns: u64,
    /// Additional time for each 1,024 bytes, received or sent.
    pub kib_ns: u64,
    /// Time to run an endpoint.
    pub endpoint_ns: u64,
}

/// The cost of a frame in the engine, rounded up: a system call, a TLS record and the node.
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

/// All built-in models; the first is the default.
pub const ALL: [Links; 4] = [
    FLAT,
    // 10 us in a rack of 40, 50 us between racks.
    Links { name: "racks", rack_ns: 10_000, rack_hosts: 40, ..FLAT },
    // 1 Gbit/s.
    Links { name: "thin", bytes_per_s: 1_000_000_000 / 8, ..FLAT },
    // Only latency between hosts: a lower bound for every fanout.
    Links { name: "flight", local_ns: 0, bytes_per_s: 0, work: FREE, ..FLAT },
];

impl Links {
    /// Looks up a built-in model by name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|links| links.name == name)
    }

    /// The time that the first bit takes from one host to another.
    pub fn flight_ns(&self, from: u32, to: u32) -> u64 {
        if from == to {
            self.local_ns
        } else if from / self.rack_hosts == to / self.rack_hosts {
            self.rack_ns
        } else {
            self.between_ns
        }
    }

    /// The time for which this many bytes occupy the network port of a host.
    pub fn wire_ns(&self, bytes: u64) -> u64 {
        match self.bytes_per_s {
            0 => 0,
            per_s => bytes * 1_000_000_000 / per_s,
        }
    }
}

impl Work {
    /// The CPU time to receive a frame.
    pub fn receiving(&self, bytes: u64) -> u64 {
        self.receive_ns + bytes * self.kib_ns / 1024
    }

    /// The CPU time to send a frame.
    pub fn sending(&self, bytes: u64) -> u64 {
        self.send_ns + bytes * self.kib_ns / 1024
    }
}
