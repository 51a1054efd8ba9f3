//! Processes that could not be reached a moment ago: who asks again hears so at once.

use crate::connection::peer_descriptor::{PeerDescriptor, Token};
use crate::domain::lock;
use crate::error::DataError;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long nobody tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// When each of them was tried last, and why it was in vain.
#[derive(Debug, Default)]
pub(crate) struct Lost(Mutex<HashMap<Token, (Instant, String)>>);

impl Lost {
    /// Fails as the last try has failed, if that is not long ago.
    pub(crate) fn check(&self, descriptor: &PeerDescriptor) -> Result<(), DataError> {
        match lock(&self.0).get(&descriptor.token) {
            Some((at, why)) if at.elapsed() < PAUSE => {
                Err(DataError::PeerDied { name: descriptor.name.clone(), why: why.clone() })
            }
            _ => Ok(()),
        }
    }

    /// A try was in vain.
    pub(crate) fn add(&self, descriptor: &PeerDescriptor, why: &str) {
        let mut lost = lock(&self.0);
        lost.retain(|_, (at, _)| at.elapsed() < PAUSE);
        lost.insert(descriptor.token, (Instant::now(), why.to_owned()));
    }
}
