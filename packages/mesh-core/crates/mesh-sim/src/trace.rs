//! The history of a world, as a hash and optionally as printed lines.

use crate::rng::mix;
use std::fmt;
use std::time::Duration;

/// A running hash of all events. The hashes of two runs that differ in any event differ.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    now: Duration,
    is_printed: bool,
}

impl Trace {
    /// Creates an empty trace. Its lines are printed to stdout if `is_printed`.
    pub fn new(is_printed: bool) -> Self {
        Self { hash: 0, now: Duration::ZERO, is_printed }
    }

    /// The current hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Sets the time of the following events.
    pub fn at(&mut self, now: Duration) {
        self.now = now;
        self.words(&[now.as_nanos() as u64]);
    }

    /// Records an event that is described by numbers.
    pub fn words(&mut self, words: &[u64]) {
        for word in words {
            self.hash = mix(self.hash.rotate_left(17) ^ word);
        }
    }

    /// Records bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            self.words(&[u64::from_le_bytes(*chunk)]);
        }
        for byte in rest {
            self.words(&[u64::from(*byte)]);
        }
    }

    /// Prints a line if printing is enabled. The hash does not depend on it.
    pub fn line(&self, line: impl FnOnce(&mut String) -> fmt::Result) {
        if self.is_printed {
            let mut payload = String::new();
            line(&mut payload).expect("writing to a string does not fail");
            println!("{:>12.6} {payload}", self.now.as_secs_f64());
        }
    }
}
