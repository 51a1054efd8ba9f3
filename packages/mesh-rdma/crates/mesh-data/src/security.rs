//! Authentication of two processes, and encryption of connections to other machines.

pub(crate) mod authentication;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod proof;
pub(crate) mod records;
