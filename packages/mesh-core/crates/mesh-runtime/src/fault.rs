//! Why a call has no value, in one byte; the layer above says the rest in the body.

/// The endpoint raised; the body is the exception.
pub const RAISED: u8 = 1;
/// The process of the receiver died; the body is what its host knows.
pub const PROC_DIED: u8 = 2;
/// The receiver has failed; the body is its failure.
pub const ACTOR_FAILED: u8 = 3;
/// The receiver was stopped, or never was.
pub const STOPPED: u8 = 4;
/// The time allowed for the call is over.
pub const DEADLINE: u8 = 5;
/// The caller gave up.
pub const CANCELLED: u8 = 6;
/// The endpoint ended without answering on its port.
pub const NO_REPLY: u8 = 7;
/// The host of the receiver died.
pub const HOST_DIED: u8 = 8;
