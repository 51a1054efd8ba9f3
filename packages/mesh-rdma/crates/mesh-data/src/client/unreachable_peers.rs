//! Peers that could not be reached recently: another attempt fails immediately.

use crate::connection::peer_descriptor::{PeerDescriptor, Token};
use crate::domain::lock;
use crate::error::DataError;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long after a failed attempt no other attempt is made.
const PAUSE: Duration = Duration::from_secs(1);

/// The time and the error of the last failed attempt, by peer.
#[derive(Debug, Default)]
pub(crate) struct UnreachablePeers(Mutex<HashMap<Token, (Instant, String)>>);

impl UnreachablePeers {
    /// Fails with the error of the last attempt, if that was recent.
    pub(crate) fn check(&self, descriptor: &PeerDescriptor) -> Result<(), DataError> {
        match lock(&self.0).get(&descriptor.token) {
            Some((at, why)) if at.elapsed() < PAUSE => {
                Err(DataError::PeerDied { name: descriptor.name.clone(), why: why.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Records a failed attempt.
    pub(crate) fn add(&self, descriptor: &PeerDescriptor, why: &str) {
        let mut lost = lock(&self.0);
        lost.retain(|_, (at, _)| at.elapsed() < PAUSE);
        lost.insert(descriptor.token, (Instant::now(), why.to_owned()));
    }
}
