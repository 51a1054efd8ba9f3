//! An authenticated and encrypted connection.

use crate::claim::Peer;
use mesh_tls::record::SEALED_LEN_MAX;
use mesh_tls::{Opener, Sealer};

/// The maximum number of records that each direction of a connection buffers.
pub(crate) const RECORDS_MAX: usize = 4;
/// The maximum number of encrypted bytes of a connection that wait for the socket.
pub const PENDING_LEN_MAX: usize = RECORDS_MAX * SEALED_LEN_MAX;

/// An authenticated connection. Its two directions are independent.
#[derive(Debug)]
pub struct SecureStream {
    /// The identity of the peer.
    pub peer: Peer,
    /// The receiving direction.
    pub opener: Opener,
    /// The sending direction.
    pub sealer: Sealer,
}
