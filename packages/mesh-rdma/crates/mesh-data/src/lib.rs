//! Copies memory directly between processes, over the best available transport.
//!
//! # Layout
//! - [`domain`]: the registrations of a process and their users; [`process`] contains the single
//!   domain of this process. Several processes map the parts of `memory`: the [`arena`] (memory
//!   that is allocated as shared memory), the [`ledger`] (the valid registrations) and [`cells`]
//!   (the copies in progress);
//! - `server`: each `listener` accepts connections within the limits of `admission`; once a client
//!   is authenticated, a `connection_handler` handles its requests;
//! - `client`: a [`link`] is a connection to the owner of a buffer;
//! - `connection`: client and server exchange each [`frame`] over a `socket`; `security`
//!   authenticates both sides, and encrypts connections to other machines;
//! - `copy`: a [`target`] is a buffer with the path over which its bytes are copied, `gather` for
//!   rows in a [`grid`], [`pull`] for copies that the owner of the destination executes on request,
//!   and [`copy_lease`] to announce copies that devices execute;
//! - `transfers`: a [`transfer`] is executed by several threads, until it is complete or [`stop`]
//!   ends it.
//!
//! # Memory safety
//! Each copy to or from a registration is announced in a cell, and the key is checked afterwards.
//! An owner first removes the key, and then waits until no cell contains the slot: from then on, no
//! process accesses the memory. The announcements of a dead process are removed with its
//! connection.

pub mod domain;
pub mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod process;
pub mod span;
pub mod stop;

mod client;
mod connection;
mod copy;
mod memory;
mod security;
mod server;
mod transfers;

pub use client::leases::Lease;
pub use client::link::{self, Link};
pub use connection::frame;
pub use connection::peer_descriptor::{self, PeerDescriptor};
pub use copy::copy_lease::{self, CopyLease};
pub use copy::target::{self, Direction, Remote, Target, Transport};
pub use copy::{grid, pull};
pub use domain::Domain;
pub use domain::registry::{self, Memory};
pub use error::DataError;
pub use memory::{arena, cells, ledger, shared_map};
pub use server::admission::Refusal;
pub use server::tcp_listeners::{Listen, Options};
pub use span::Span;
pub use stop::Stop;
pub use transfers::transfer::{self, Transfer};
