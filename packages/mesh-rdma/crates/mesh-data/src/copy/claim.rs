//! Copies to or from a buffer that something else makes: a device, say.
//!
//! They are announced as copies of our own are, so a release waits for them, and what a dead
//! process had announced goes with its connection.

use crate::client::link::Link;
use crate::copy::pull::Pin;
use crate::copy::way::{Remote, nearby};
use crate::domain::Domain;
use crate::error::DataError;
use crate::process::generation;
use std::sync::Arc;

/// As long as this lives, a copy of a buffer may be under way.
pub struct Claim {
    side: Side,
    slot: u32,
    key: u64,
    /// Which process has said so.
    generation: usize,
}

enum Side {
    /// The buffer is ours.
    Ourselves { domain: Arc<Domain>, _pin: Pin },
    /// It is another process's, and the cell is of those that we share with it.
    Nearby { link: Arc<Link>, cell: usize },
}

impl Claim {
    /// Announces a copy of a buffer of this process.
    ///
    /// # Errors
    /// It was released.
    pub fn ours(domain: &Arc<Domain>, remote: &Remote) -> Result<Self, DataError> {
        let Remote { slot, key, .. } = *remote;
        let pin = Pin::of(domain, slot, key, false)?;
        let side = Side::Ourselves { domain: Arc::clone(domain), _pin: pin };
        Ok(Self { side, slot, key, generation: generation() })
    }

    /// Announces a copy of a buffer of another process.
    ///
    /// # Errors
    /// It was released, the process is gone, or is on another machine.
    pub fn theirs(link: &Arc<Link>, remote: &Remote) -> Result<Self, DataError> {
        if let Err(why) = &link.nearby {
            return Err(DataError::NoWay { transport: "a copy by a device", why: why.clone() });
        }
        let Remote { slot, key, .. } = *remote;
        let side = Side::Nearby { link: Arc::clone(link), cell: nearby(link).cells.enter(slot) };
        let claim = Self { side, slot, key, generation: generation() };
        claim.check()?;
        Ok(claim)
    }

    /// Looks whether to go on.
    ///
    /// # Errors
    /// The buffer was released, or its owner is gone.
    pub fn check(&self) -> Result<(), DataError> {
        let is_good = match &self.side {
            Side::Ourselves { domain, .. } => domain.ledger().is_good(self.slot, self.key),
            Side::Nearby { link, .. } => {
                link.check()?;
                nearby(link).ledger.is_good(self.slot, self.key)
            }
        };
        if is_good { Ok(()) } else { Err(DataError::Released) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // In a forked child the cell is the parent's, whose copy goes on.
        if let Side::Nearby { link, cell } = &self.side
            && self.generation == generation()
        {
            nearby(link).cells.leave(*cell);
        }
    }
}
