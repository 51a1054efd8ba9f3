//! Errors of transfers, with one variant for each case that callers handle differently.

use std::io;

/// The reason why a transfer, or the connection for it, failed.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The registration was released.
    #[error("the buffer was released by its owner or by a holder: request another one")]
    Released,
    /// The range exceeds the buffer.
    #[error("bytes {offset} to {end} are outside of a buffer of {len} bytes")]
    OutOfBounds {
        /// The begin of the range.
        offset: u64,
        /// The end of the range.
        end: u64,
        /// The length of the buffer.
        len: u64,
    },
    /// The memory is read-only.
    #[error("the buffer was registered for reading only: register writable memory")]
    ReadOnly,
    /// The bytes of an atomic operation are not an aligned word.
    #[error(
        "an atomic operation at byte {offset}: it needs eight bytes that begin at a multiple of 8"
    )]
    Misaligned {
        /// The offset of the operation.
        offset: u64,
    },
    /// The owner of the buffer has died or can no longer be reached.
    #[error("{name} is gone: {why}")]
    PeerDied {
        /// The name of the owner.
        name: String,
        /// How its death was detected.
        why: String,
    },
    /// The deadline has passed. Nothing is written anymore.
    #[error("the transfer was not done in time; no more bytes of it are written")]
    Deadline,
    /// The caller has cancelled the transfer. Nothing is written anymore.
    #[error("the transfer was cancelled; no more bytes of it are written")]
    Cancelled,
    /// The transfer ended early, and it is unknown whether data is still being written.
    #[error(
        "the transfer was {}, and {name} does not answer: what had reached it may still be written \
         when it resumes",
        if *is_cancelled { "cancelled" } else { "not done in time" }
    )]
    Unsettled {
        /// The name of the owner.
        name: String,
        /// Whether the caller has cancelled it; otherwise, the deadline has passed.
        is_cancelled: bool,
    },
    /// The peer refused the connection, or uses another protocol.
    #[error("{name} rejected the connection: {why}")]
    Refused {
        /// The name of the peer.
        name: String,
        /// The reason that it reported.
        why: String,
    },
    /// A transport to the peer cannot be used.
    #[error("{transport} cannot be used for this buffer: {why}")]
    TransportUnavailable {
        /// The name of the transport.
        transport: &'static str,
        /// The reason.
        why: String,
    },
    /// The memory is on a device, so the processor must not access its address.
    #[error("the memory is on a device, which this transport does not support")]
    OnDevice,
    /// A limit was reached.
    #[error("{0}")]
    Full(&'static str),
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl DataError {
    /// Adds the operation to an error of the system.
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}
