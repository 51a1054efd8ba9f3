//! A forked child may drop the shared segments of its parent, and nothing else.
#![expect(unsafe_code, reason = "forks")]
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use mesh_runtime::segment::{
    CacheLimits, FillError, Mapping, OpenError, SegmentCache, SegmentLimits, SegmentPool,
};
use mesh_wire::id::ProcId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SENDER: ProcId = ProcId::new(0, 1);
const READER: ProcId = ProcId::new(0, 2);
const LEN: usize = 1 << 20;

/// Returns whether `check` is true in a forked child. The child exits without running other code.
fn is_true_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the check only, which takes no lock that another thread may hold.
    match unsafe { libc::fork() } {
        -1 => panic!("cannot fork"),
        0 => {
            let is_ok = check();
            // SAFETY: ends the child immediately.
            unsafe { libc::_exit(i32::from(!is_ok)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child is ours and the status a local.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            ended == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

/// Returns a pool with one message of `byte`s, a cache, and the opened message.
fn opened(byte: u8, told: &Arc<AtomicBool>) -> (SegmentPool, SegmentCache, Vec<Mapping>) {
    let pool = SegmentPool::new(SENDER, SegmentLimits::default());
    let cache = SegmentCache::new(CacheLimits::default());
    let filled = pool.fill(&[&vec![byte; LEN]], &[READER]).unwrap();
    cache.learn(SENDER, filled.segment, filled.fd.try_clone().unwrap()).unwrap();
    let told = Arc::clone(told);
    let on_drop = Box::new(move || told.store(true, Ordering::Relaxed));
    let views = cache.open(&filled.parts, on_drop).unwrap();
    (pool, cache, views)
}

#[test]
fn a_child_cannot_use_the_pool_or_the_cache_of_its_parent() {
    let (pool, cache, views) = opened(1, &Arc::default());
    assert!(is_true_in_child(|| {
        pool.release(0, 1, READER);
        pool.reader_died(READER);
        pool.sweep();
        cache.owner_died(SENDER);
        let fill = pool.fill(&[b"bytes"], &[READER]);
        let open = cache.open(&[], Box::new(|| {}));
        matches!(fill, Err(FillError::Forked)) && matches!(open, Err(OpenError::Forked))
    }));
    assert_eq!(pool.stats().bytes_in_use, LEN);
    assert_eq!(views[0][LEN - 1], 1);
}

#[test]
fn a_child_that_drops_a_message_does_not_release_it() {
    let told = Arc::new(AtomicBool::new(false));
    let (pool, cache, views) = opened(1, &told);
    let mut views = Some(views);
    assert!(is_true_in_child(|| {
        drop(views.take());
        !told.load(Ordering::Relaxed)
    }));
    drop(views);
    assert!(told.load(Ordering::Relaxed), "the parent does");
    drop((pool, cache));
}

#[test]
fn a_child_keeps_messages_that_its_parent_had_open_at_prepare_fork() {
    let (pool, cache, mut views) = opened(1, &Arc::default());
    views[0][0] = 9;
    cache.prepare_fork().unwrap();
    // The sender refills the pages, as it does once the parent has released them.
    pool.release(0, 1, READER);
    let refilled = pool.fill(&[&vec![2; LEN]], &[READER]).unwrap();
    assert_eq!(refilled.segment, 0);
    assert!(is_true_in_child(|| views[0][0] == 9 && views[0][1..].iter().all(|byte| *byte == 1)));
}
