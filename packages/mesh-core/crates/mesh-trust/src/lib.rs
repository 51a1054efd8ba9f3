//! Who may talk over a link between hosts.
//!
//! Each job has its own certificate authority, and what that authority signed is the only thing
//! that opens a link: names of hosts and their addresses prove nothing here.
//!
//! # Layout
//! - [`claim`]: what a certificate says of its holder: job, role, name, generation;
//! - [`authority`] signs, [`identity`] is what one process holds, [`folder`] keeps both in files;
//! - [`local`] keeps the authority of one user on one machine, and renews it;
//! - [`trust`]: what a process shows to its peers and asks of them, as rustls wants it;
//! - [`handshake`]: the first bytes of a link, until both sides have proved themselves;
//! - [`record`]: all bytes after that, sealed and opened;
//! - [`error`]: what may go wrong, in words for both sides.
//!
//! # Edges
//! Bytes go in and come out; sockets and deadlines belong to the caller. The only IO is that of
//! [`folder`] and [`local`]. The time is passed in, or read from the clock that is passed in.
//!
//! # Example
//! ```
//! use mesh_trust::{Authority, Role, Trust, handshake::Handshake, record::SecureStream};
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
pub mod record;
pub mod trust;

mod alert;
mod encoded;
mod verify;

pub use authority::Authority;
pub use claim::{Peer, Role};
pub use error::TrustError;
pub use handshake::Handshake;
pub use identity::Identity;
pub use record::{Opener, Sealer, SecureStream};
pub use trust::Trust;
