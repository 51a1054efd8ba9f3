//! The side that owns memory: listeners, accept loops, and a handler for each connection.

pub(crate) mod admission;
pub(crate) mod connection_handler;
pub(crate) mod interfaces;
pub(crate) mod listener;
pub(crate) mod peer;
pub(crate) mod tcp_listeners;
