//! Memory to memory between processes, by the best way there is.
//!
//! # Layout
//! - [`domain`]: what a process offers and who uses it; [`process`] has the one domain of this
//!   process. The parts of `memory` are mapped by several processes: the [`arena`] (memory that is
//!   shared from the beginning), the [`ledger`] (which registrations are good) and [`cells`] (who
//!   is copying);
//! - `server`: each `listener` accepts connections within the limits of `admission`; once a client
//!   is authenticated, a `connection_handler` answers its requests;
//! - `client`: a [`link`] goes to the owner of a buffer;
//! - `connection`: between the two travels what [`frame`] says, in a `socket`; `security` proves
//!   who is at the other end, and seals what leaves the machine;
//! - `copy`: the [`way`] in which the bytes of one buffer are copied, `gather` when they lie in
//!   rows as a [`grid`] says, [`pull`] when somebody asks the owner of the destination, and
//!   [`claim`] to announce what devices copy;
//! - `transfers`: a [`transfer`] does it with several threads, until [`stop`] says that it is over.
//!
//! # Safety of memory
//! Each copy to or from a registration is announced in a cell, and the key is looked at behind it.
//! An owner first takes the key away, then waits until no cell names the slot: from then on nobody
//! touches the memory. What a dead process had announced goes with its connection.

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
pub use connection::peer_descriptor::{self, PeerDescriptor, PeerDescriptor as Card};
pub use copy::claim::{self, Claim};
pub use copy::way::{self, Direction, Kind, Remote, Target};
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
