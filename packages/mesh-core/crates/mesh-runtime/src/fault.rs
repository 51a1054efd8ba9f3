//! Fault codes: one byte for the reason why a call has no value.
//!
//! The layer above puts the details in the body.

/// The endpoint raised an exception; the body is the exception.
pub const RAISED: u8 = 1;
/// The process of the receiver died; the body is the information of its host about the death.
pub const PROC_DIED: u8 = 2;
/// The receiver has failed; the body is its failure.
pub const ACTOR_FAILED: u8 = 3;
/// The receiver was stopped or never existed.
pub const STOPPED: u8 = 4;
/// The deadline of the call has passed.
pub const DEADLINE: u8 = 5;
/// The caller cancelled the call.
pub const CANCELLED: u8 = 6;
/// The endpoint ended without a reply on its port.
pub const NO_REPLY: u8 = 7;
/// The host of the receiver died.
pub const HOST_DIED: u8 = 8;
