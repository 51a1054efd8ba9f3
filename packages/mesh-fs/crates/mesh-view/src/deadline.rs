//! An end to each wait.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::parked::Parked;

/// Starts what fails the reads that have waited too long; it ends when everything is over.
pub(crate) fn watch(parked: &Arc<Parked>, limit: Duration) -> std::io::Result<()> {
    let parked = Arc::clone(parked);
    let watch = move || while parked.expire(limit) {};
    thread::Builder::new().name("mesh-fs-deadline".into()).spawn(watch).map(drop)
}
