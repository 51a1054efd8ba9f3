//! The proof with which two processes on loopback show each other that they know the secret of a
//! handle.
//!
//! On loopback, data stays inside the kernel and is not encrypted, but any user of the machine can
//! connect to a port, or listen on a port that has become free. The secret itself is therefore
//! never sent. The owner sends a random challenge; the client replies with a second challenge and
//! an HMAC over both; the owner returns another HMAC over both. The port is part of each HMAC, so
//! that a process in the middle cannot relay the proof.

use crate::connection::peer_descriptor::Token;
use ring::hmac::{HMAC_SHA256, Key, sign};

/// Random bytes that are used for one connection only.
pub(crate) type Challenge = [u8; 16];
/// The first half of an HMAC-SHA256.
pub(crate) type Proof = [u8; 16];

/// The side that sends a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that has connected.
    Client,
    /// The process that listens.
    Owner,
}

/// The challenges of one connection, and the port of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) owner: Challenge,
    pub(crate) client: Challenge,
    pub(crate) port: u16,
}

impl Exchange {
    /// The proof with which `side` shows that it knows the secret.
    pub(crate) fn proof(&self, secret: &Token, side: Side) -> Proof {
        let label: &[u8] = match side {
            Side::Client => b"mesh-rdma loopback client",
            Side::Owner => b"mesh-rdma loopback owner",
        };
        let port = self.port.to_be_bytes();
        let message = [label, &self.owner, &self.client, &port].concat();
        let tag = sign(&Key::new(HMAC_SHA256, secret), &message);
        *tag.as_ref().first_chunk().expect("a tag has 32 bytes")
    }

    /// Whether `shown` is the proof of `side`. The comparison takes constant time.
    pub(crate) fn is_proved(&self, secret: &Token, side: Side, shown: &Proof) -> bool {
        let expected = u128::from_le_bytes(self.proof(secret, side));
        expected ^ u128::from_le_bytes(*shown) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCHANGE: Exchange = Exchange { owner: [1; 16], client: [2; 16], port: 4321 };
    const SECRET: Token = [3; 16];

    #[test]
    fn a_proof_is_valid_only_for_its_secret_side_and_connection() {
        let proof = EXCHANGE.proof(&SECRET, Side::Client);
        assert!(EXCHANGE.is_proved(&SECRET, Side::Client, &proof));
        assert!(!EXCHANGE.is_proved(&[4; 16], Side::Client, &proof));
        assert!(!EXCHANGE.is_proved(&SECRET, Side::Owner, &proof));
        for other in [
            Exchange { owner: [9; 16], ..EXCHANGE },
            Exchange { client: [9; 16], ..EXCHANGE },
            Exchange { port: 4322, ..EXCHANGE },
        ] {
            assert!(!other.is_proved(&SECRET, Side::Client, &proof), "{other:?}");
        }
    }
}
