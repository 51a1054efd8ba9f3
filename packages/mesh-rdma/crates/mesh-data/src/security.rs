//! How two processes prove who they are, and the sealing of what leaves the machine.

pub(crate) mod authentication;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod proof;
pub(crate) mod records;
