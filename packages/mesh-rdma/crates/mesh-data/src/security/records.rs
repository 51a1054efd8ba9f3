//! Transfers of memory as TLS records over a blocking connection.
//!
//! `mesh-tls` encrypts and decrypts. A range of memory passes through a single buffer that stays in
//! the cache, and only authenticated data reaches the memory of a user.
#![expect(unsafe_code, reason = "copies between a buffer and memory of the transfer")]

use crate::connection::blocking_io::{self, SocketError};
use crate::span::Span;
use crate::stop::Stop;
use mesh_tls::{Opener, Sealer, TlsError};
use rustix::net::RecvFlags;
use rustls::{CertificateError, Error};
use std::io;
use std::os::fd::BorrowedFd;

/// The number of records that each direction buffers, which fit into the cache of a core.
pub(crate) const RECORDS_MAX: usize = 16;
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// Sends two ranges of memory in sequence.
pub(crate) fn push(
    sealer: &mut Sealer,
    fd: BorrowedFd<'_>,
    head: &[u8],
    body: Span,
    stop: Option<&Stop>,
) -> Result<(), SocketError> {
    let len = head.len() + body.len;
    let (mut copied, mut written) = (0, 0);
    while written < len {
        written += sealer.write_with(len - written, |plain| {
            let of_head = head.get(copied..).unwrap_or_default();
            let of_head = &of_head[..of_head.len().min(plain.len())];
            let (first, rest) = plain.split_at_mut(of_head.len());
            first.copy_from_slice(of_head);
            let at = (copied + of_head.len()).saturating_sub(head.len());
            let part = body.part(at, rest.len()).expect("the records are as long as the bytes");
            let destination = Span { start: rest.as_mut_ptr() as usize, len: rest.len() };
            // SAFETY: the caller keeps the body mapped, and `destination` is in the buffer of the
            // sealer.
            unsafe { destination.copy_from(part) };
            copied += plain.len();
        })?;
        blocking_io::push(fd, sealer.pending(), NO_BYTES, stop)?;
        sealer.sent(sealer.pending().len());
    }
    Ok(())
}

/// Receives available bytes into two ranges of memory in sequence. Returns their number, which is
/// zero if the other side has closed the connection.
pub(crate) fn pull(
    opener: &mut Opener,
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    body: Span,
    flags: RecvFlags,
    stop: Option<&Stop>,
) -> Result<usize, SocketError> {
    while opener.plain().is_empty() && opener.open()?.is_none() {
        if opener.is_closed() {
            return Err(SocketError::Closed);
        }
        match blocking_io::pull(fd, opener.spare(), NO_BYTES, flags, stop)? {
            0 => return Ok(0),
            received => opener.filled(received),
        }
    }
    let plain = opener.plain();
    let of_head = head.len().min(plain.len());
    let of_body = body.len.min(plain.len() - of_head);
    head[..of_head].copy_from_slice(&plain[..of_head]);
    let rest = &plain[of_head..of_head + of_body];
    let from = Span { start: rest.as_ptr() as usize, len: rest.len() };
    // SAFETY: the caller keeps the body mapped for writing, and `from` is in the buffer of the
    // opener.
    unsafe { body.copy_from(from) };
    opener.consume(of_head + of_body);
    Ok(of_head + of_body)
}

impl From<TlsError> for SocketError {
    /// Translates an error for the user of a buffer.
    fn from(error: TlsError) -> Self {
        let other = CertificateError::ApplicationVerificationFailure;
        let unproven = |why: &str| Self::Unproven(why.to_owned());
        match error {
            TlsError::Handshake(Error::InvalidCertificate(why)) if why == other => {
                unproven("another process answers there: its certificate is not that of the handle")
            }
            TlsError::NotTls { .. } => unproven("it speaks no TLS"),
            TlsError::NotSealed | TlsError::Tampered => {
                unproven("what it sent was changed on the way")
            }
            TlsError::Closed | TlsError::Alert(_) => Self::Closed,
            TlsError::TooLong { .. } | TlsError::Misbehaved(_) => Self::Strange,
            TlsError::Crypto { why } => Self::System(io::Error::other(why)),
            other => Self::Unproven(other.to_string()),
        }
    }
}
