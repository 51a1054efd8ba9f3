//! Memory to memory between processes, by the best way there is.
//!
//! # Layout
//! - [`domain`]: what a process offers and who uses it, with [`arena`] (memory that is shared from
//!   the beginning), [`ledger`] (which registrations are good) and [`cells`] (who is copying);
//!   [`process`] has the one domain of this process;
//! - each `listener` accepts connections within the limits of `admission`, and `authentication`
//!   checks that the client was given a handle; then `door` answers. [`link`] goes to others;
//!   between them travels what [`frame`] says, in a `socket`: as it is on one machine, and else in
//!   `records` with the keys of a `handshake` that proves the owner by its `identity`;
//! - [`way`]: how the bytes of one buffer are copied, and `gather` when they lie in rows, as a
//!   [`grid`] says; [`transfer`] does it with several threads, until [`stop`] says that it is over;
//!   [`pull`]: what the owner of a buffer copies to it when somebody asks; [`claim`] announces what
//!   devices copy.
//!
//! # Safety of memory
//! Each copy to or from a registration is announced in a cell, and the key is looked at behind it.
//! An owner first takes the key away, then waits until no cell names the slot: from then on nobody
//! touches the memory. What a dead process had announced goes with its connection.

pub mod arena;
pub mod card;
pub mod cells;
pub mod claim;
pub mod domain;
pub mod error;
pub mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grid;
pub mod ledger;
pub mod link;
pub mod process;
pub mod pull;
pub mod registry;
pub mod shared;
pub mod span;
pub mod stop;
pub mod transfer;
pub mod way;

mod admission;
mod alarm;
mod attach;
mod attention;
mod authentication;
mod call;
mod descriptor;
mod door;
mod gather;
mod handshake;
mod identity;
mod interfaces;
mod leases;
mod listener;
mod listening;
mod lost;
mod movers;
mod pipe;
mod proof;
mod records;
mod retries;
mod socket;
mod streams;
mod visitor;
mod watch;

pub use admission::Refusal;
pub use card::Card;
pub use claim::Claim;
pub use domain::Domain;
pub use error::DataError;
pub use leases::Lease;
pub use link::Link;
pub use listening::{Listen, Options};
pub use registry::Memory;
pub use span::Span;
pub use stop::Stop;
pub use transfer::Transfer;
pub use way::{Direction, Kind, Remote, Target};
