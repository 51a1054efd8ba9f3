//! Handshakes, records and credentials, in one binary because linking takes longer than the tests.

mod folder;
mod forged;
mod handshake;
mod local;
#[path = "../pair/mod.rs"]
mod pair;
mod records;
mod rotation;
mod unauthenticated_peers;
