//! Timeout of reads that wait for chunks.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::parked::Parked;

/// Starts a thread that fails reads which have waited too long. It exits when `parked` ends.
pub(crate) fn watch(parked: &Arc<Parked>, limit: Duration) -> std::io::Result<()> {
    let parked = Arc::clone(parked);
    let watch = move || while parked.expire(limit) {};
    thread::Builder::new().name("mesh-fs-deadline".into()).spawn(watch).map(drop)
}
