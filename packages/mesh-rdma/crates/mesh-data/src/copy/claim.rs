//! Announcement of copies that others execute, for example devices.
//!
//! They are announced like copies of this process, so a release waits for them. The announcements
//! of a dead process are removed with its connection.

use crate::client::link::Link;
use crate::copy::pull::Pin;
use crate::copy::way::{Remote, nearby};
use crate::domain::Domain;
use crate::error::DataError;
use crate::process::generation;
use std::sync::Arc;

/// While this exists, a copy to or from a buffer may be in progress.
pub struct Claim {
    side: Side,
    slot: u32,
    key: u64,
    /// The generation of the process that made the claim.
    generation: usize,
}

enum Side {
    /// This process owns the buffer.
    Ourselves { domain: Arc<Domain>, _pin: Pin },
    /// Another process owns the buffer; the cell is shared with that process.
    Nearby { link: Arc<Link>, cell: usize },
}

impl Claim {
    /// Announces a copy to or from a buffer of this process.
    ///
    /// # Errors
    /// The buffer was released.
    pub fn ours(domain: &Arc<Domain>, remote: &Remote) -> Result<Self, DataError> {
        let Remote { slot, key, .. } = *remote;
        let pin = Pin::of(domain, slot, key, false)?;
        let side = Side::Ourselves { domain: Arc::clone(domain), _pin: pin };
        Ok(Self { side, slot, key, generation: generation() })
    }

    /// Announces a copy to or from a buffer of another process.
    ///
    /// # Errors
    /// The buffer was released, or the process has died or is on another machine.
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

    /// Checks that the copy may continue.
    ///
    /// # Errors
    /// The buffer was released, or its owner has died.
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
        // In a forked child, the cell belongs to the parent, whose copy continues.
        if let Side::Nearby { link, cell } = &self.side
            && self.generation == generation()
        {
            nearby(link).cells.leave(*cell);
        }
    }
}
