//! Transfers of many pieces, executed by several threads.

pub mod transfer;

pub(crate) mod thread_pool;
pub(crate) mod timer;
