//! What happened in a world, as one number and, if wanted, line by line.

use crate::rng::mix;
use std::fmt;
use std::time::Duration;

/// A running hash over everything that happens. Two runs that differ anywhere differ here.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    now: Duration,
    is_printed: bool,
}

impl Trace {
    /// An empty history; its lines go to stdout when `is_printed`.
    pub fn new(is_printed: bool) -> Self {
        Self { hash: 0, now: Duration::ZERO, is_printed }
    }

    /// The number so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Notes the time of what follows.
    pub fn at(&mut self, now: Duration) {
        self.now = now;
        self.words(&[now.as_nanos() as u64]);
    }

    /// Notes something that is named by numbers.
    pub fn words(&mut self, words: &[u64]) {
        for word in words {
            self.hash = mix(self.hash.rotate_left(17) ^ word);
        }
    }

    /// Notes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            self.words(&[u64::from_le_bytes(*chunk)]);
        }
        for byte in rest {
            self.words(&[u64::from(*byte)]);
        }
    }

    /// Prints a line if anybody looks; the hash does not depend on it.
    pub fn line(&self, line: impl FnOnce(&mut String) -> fmt::Result) {
        if self.is_printed {
            let mut text = String::new();
            line(&mut text).expect("writing to a string does not fail");
            println!("{:>12.6} {text}", self.now.as_secs_f64());
        }
    }
}
