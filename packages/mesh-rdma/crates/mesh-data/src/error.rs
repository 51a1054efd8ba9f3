//! What can go wrong with a transfer: one variant for each thing that a caller does differently.

use std::io;

/// Why a transfer, or the way to it, failed.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The registration was taken back.
    #[error("the buffer was released by its owner or by a holder: ask the owner for another")]
    Released,
    /// Bytes outside the buffer were asked for.
    #[error("bytes {offset} to {end} of a buffer of {len} bytes: stay inside")]
    OutOfBounds {
        /// Where the range begins.
        offset: u64,
        /// Where it ends.
        end: u64,
        /// How long the buffer is.
        len: u64,
    },
    /// The memory may only be read.
    #[error("the buffer was registered for reading only: register writable memory")]
    ReadOnly,
    /// An atomic operation on bytes that cannot be changed as one.
    #[error(
        "an atomic operation at byte {offset}: it needs eight bytes that begin at a multiple of 8"
    )]
    Misaligned {
        /// Where it was to be.
        offset: u64,
    },
    /// The owner of the buffer is gone, or cannot be reached any more.
    #[error("{name} is gone: {why}")]
    PeerDied {
        /// Who it is.
        name: String,
        /// How that is known.
        why: String,
    },
    /// The time is over. Nothing is written any more.
    #[error("the transfer was not done in time; no byte of it is written any more")]
    Deadline,
    /// The caller has given up. Nothing is written any more.
    #[error("the transfer was cancelled; no byte of it is written any more")]
    Cancelled,
    /// The time is over or the caller has given up, and nobody can say whether all is at rest.
    #[error(
        "the transfer was {}, and {name} does not answer: what had reached it may still be written \
         when it goes on",
        if *is_cancelled { "cancelled" } else { "not done in time" }
    )]
    Unsettled {
        /// Who it is.
        name: String,
        /// Whether the caller has given up.
        is_cancelled: bool,
    },
    /// The peer does not let us in, or speaks another language.
    #[error("{name} refuses the connection: {why}")]
    Refused {
        /// Who it is.
        name: String,
        /// What it said.
        why: String,
    },
    /// This way to the peer cannot be used.
    #[error("{transport} cannot be used for this buffer: {why}")]
    NoWay {
        /// The name of the transport.
        transport: &'static str,
        /// Why not.
        why: String,
    },
    /// The memory is a device's: what the processor copies by must not touch its address.
    #[error("the memory is on a device, where this way does not reach: let the best way be taken")]
    OnDevice,
    /// There are too many of something.
    #[error("{0}")]
    Full(&'static str),
    /// The system refuses something.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl DataError {
    /// Names what was being done when the system refused something.
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}
