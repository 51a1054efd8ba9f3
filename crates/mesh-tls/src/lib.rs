//! TLS 1.3 for a connection, independent of sockets and of how peers are authenticated.
//!
//! A source crate: each wheel that uses it compiles a separate copy, see the root
//! `ARCHITECTURE.md`.
//!
//! # Layout
//! - [`handshake`]: the handshake of a connection, with a rustls configuration of the caller;
//! - [`record`]: encryption and decryption of all bytes after the handshake;
//! - [`error`]: errors for the caller, which knows how to explain them to its users.
//!
//! # Scope
//! The crate transforms bytes; sockets, deadlines and the number of concurrent handshakes belong to
//! the caller.

pub mod error;
pub mod handshake;
pub mod record;

pub use error::TlsError;
pub use handshake::Handshake;
pub use record::{Opener, Sealer};
