//! Announcement of copies that others execute, for example devices.
//!
//! They are announced like copies of this process, so a release waits for them. The announcements
//! of a dead process are removed with its connection.

use crate::client::link::Link;
use crate::copy::pull::Pin;
use crate::copy::target::{Remote, local_peer};
use crate::domain::Domain;
use crate::error::DataError;
use crate::process::generation;
use std::sync::Arc;

/// While this exists, a copy to or from a buffer may be in progress.
pub struct CopyLease {
    owner: Owner,
    slot: u32,
    key: u64,
    /// The generation of the process that made the lease.
    generation: usize,
}

enum Owner {
    /// This process owns the buffer.
    ThisProcess { domain: Arc<Domain>, _pin: Pin },
    /// Another process owns the buffer; the cell is shared with that process.
    LocalPeer { link: Arc<Link>, cell: usize },
}

impl CopyLease {
    /// Announces a copy to or from a buffer of this process.
    ///
    /// # Errors
    /// The buffer was released.
    pub fn ours(domain: &Arc<Domain>, remote: &Remote) -> Result<Self, DataError> {
        let Remote { slot, key, .. } = *remote;
        let pin = Pin::of(domain, slot, key, false)?;
        let owner = Owner::ThisProcess { domain: Arc::clone(domain), _pin: pin };
        Ok(Self { owner, slot, key, generation: generation() })
    }

    /// Announces a copy to or from a buffer of another process.
    ///
    /// # Errors
    /// The buffer was released, or the process has died or is on another machine.
    pub fn theirs(link: &Arc<Link>, remote: &Remote) -> Result<Self, DataError> {
        if let Err(why) = &link.local_peer {
            return Err(DataError::TransportUnavailable {
                transport: "a copy by a device",
                why: why.clone(),
            });
        }
        let Remote { slot, key, .. } = *remote;
        let owner =
            Owner::LocalPeer { link: Arc::clone(link), cell: local_peer(link).cells.enter(slot) };
        let lease = Self { owner, slot, key, generation: generation() };
        lease.check()?;
        Ok(lease)
    }

    /// Checks that the copy may continue.
    ///
    /// # Errors
    /// The buffer was released, or its owner has died.
    pub fn check(&self) -> Result<(), DataError> {
        let is_valid = match &self.owner {
            Owner::ThisProcess { domain, .. } => domain.ledger().is_valid(self.slot, self.key),
            Owner::LocalPeer { link, .. } => {
                link.check()?;
                local_peer(link).ledger.is_valid(self.slot, self.key)
            }
        };
        if is_valid { Ok(()) } else { Err(DataError::Released) }
    }
}

impl Drop for CopyLease {
    fn drop(&mut self) {
        // In a forked child, the cell belongs to the parent, whose copy continues.
        if let Owner::LocalPeer { link, cell } = &self.owner
            && self.generation == generation()
        {
            local_peer(link).cells.leave(*cell);
        }
    }
}
