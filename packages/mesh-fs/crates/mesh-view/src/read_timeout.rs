//! Timeout of reads that wait for chunks.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::suspended_reads::SuspendedReads;

/// Starts a thread that fails reads which have waited too long. It exits when `suspended_reads` is
/// closed.
pub(crate) fn watch(suspended_reads: &Arc<SuspendedReads>, limit: Duration) -> std::io::Result<()> {
    let suspended_reads = Arc::clone(suspended_reads);
    let watch = move || while suspended_reads.expire(limit) {};
    thread::Builder::new().name("mesh-fs-deadline".into()).spawn(watch).map(drop)
}
