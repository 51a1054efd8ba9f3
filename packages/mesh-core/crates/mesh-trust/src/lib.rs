//! Mutual authentication and encryption of connections between hosts.
//!
//! Each job has a dedicated certificate authority. A certificate that this authority signed is the
//! only credential that authenticates a connection; host names and addresses prove nothing.
//!
//! # Layout
//! - [`claim`]: the statements of a certificate about its holder: job, role, name and generation;
//! - [`authority`] signs certificates, [`identity`] is the credentials of one process, and
//!   [`folder`] stores both in files;
//! - [`local`] stores and renews the authority of one user on one machine;
//! - [`trust`]: the rustls configuration of a process: its credentials and the peers that it
//!   accepts;
//! - [`handshake`]: the handshake of a connection;
//! - [`secure_stream`]: the connection after the handshake, whose records `mesh-tls` encrypts;
//! - [`error`]: errors, with messages for both sides.
//!
//! # Scope
//! The crate transforms bytes; sockets and deadlines belong to the caller. Only [`folder`] and
//! [`local`] perform IO. The time is passed in, or read from a clock that is passed in.
//!
//! # Example
//! ```
//! use mesh_trust::{Authority, Role, SecureStream, Trust};
//! use mesh_wire::id::JobId;
//! use rustls_pki_types::UnixTime;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), mesh_trust::TrustError> {
//! let week = Duration::from_secs(7 * 24 * 3600);
//! let authority = Authority::create(JobId([7; 16]), week, UnixTime::now())?;
//! let worker = authority.issue(Role::Worker, "host-1", UnixTime::now())?;
//! let controller = authority.issue(Role::Controller, "script", UnixTime::now())?;
//!
//! let mut server = Trust::new(&worker, &[Role::Controller, Role::Worker])?.accept();
//! let mut client = Trust::new(&controller, &[Role::Worker])?.connect()?;
//! while !(server.is_done() && client.is_done()) {
//!     let (bytes, len) = (client.pending().to_vec(), client.pending().len());
//!     client.sent(len);
//!     server.feed(&bytes)?;
//!     let (bytes, len) = (server.pending().to_vec(), server.pending().len());
//!     server.sent(len);
//!     client.feed(&bytes)?;
//! }
//! let stream: SecureStream = server.finish()?;
//! assert_eq!(stream.peer.name(), "script");
//! # Ok(())
//! # }
//! ```

pub mod authority;
pub mod claim;
pub mod error;
pub mod folder;
pub mod handshake;
pub mod identity;
pub mod local;
pub mod secure_stream;
pub mod trust;

mod alert;
mod encoded;
mod verify;

pub use authority::Authority;
pub use claim::{Peer, Role};
pub use error::TrustError;
pub use handshake::Handshake;
pub use identity::Identity;
pub use mesh_tls::{Opener, Sealer, TlsError};
pub use secure_stream::SecureStream;
pub use trust::Trust;
