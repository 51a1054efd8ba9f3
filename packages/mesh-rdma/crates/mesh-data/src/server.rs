//! The server side, which owns memory: listeners, accept loops, and one handler per connection.

pub(crate) mod admission;
pub(crate) mod connection_handler;
pub(crate) mod interfaces;
pub(crate) mod listener;
pub(crate) mod peer;
pub(crate) mod tcp_listeners;
