//! A released registration is not accessed anymore: not during a copy, not when its slot is reused,
//! and not when the last handle is lost in transit.
#![expect(unsafe_code, reason = "copies between pieces of memory of the test")]

use mesh_data::process::domain;
use mesh_data::{DataError, Direction, Domain, Memory, Remote, Span, Stop, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of all waits in these tests.
const LIMIT: Duration = Duration::from_secs(20);

/// Counts when the memory that it keeps is released.
struct Flag(Arc<AtomicUsize>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn span_of(bytes: &mut [u8]) -> Span {
    Span { start: bytes.as_mut_ptr() as usize, len: bytes.len() }
}

fn register(domain: &Arc<Domain>, span: Span, freed: &Arc<AtomicUsize>) -> Arc<Target> {
    let owner = Box::new(Flag(Arc::clone(freed)));
    let memory = Memory { span, is_writable: true, device: None };
    let (slot, key) = domain.register(memory, owner).expect("there is space for one");
    let (len, address) = (span.len as u64, span.start as u64);
    let remote = Remote { slot, key, len, address, arena: None, is_on_device: false };
    Arc::new(Target::ours(domain, remote))
}

fn write(target: &Target, bytes: &mut [u8]) -> Result<(), DataError> {
    // SAFETY: the bytes belong to the caller until this returns.
    unsafe { target.copy(Direction::Write, span_of(bytes), 0, &Stop::after(None)) }
}

#[test]
fn concurrent_writes_never_land_after_a_release() {
    const LEN: usize = 3 << 20;
    let domain = domain().expect("this system has what it takes");
    let (mut memory, freed) = (vec![0_u8; LEN], Arc::new(AtomicUsize::new(0)));
    for round in 1..60_usize {
        let target = register(&domain, span_of(&mut memory), &freed);
        let is_begun = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let (target, is_begun) = (Arc::clone(&target), Arc::clone(&is_begun));
                thread::spawn(move || {
                    let mut ones = vec![1_u8; LEN];
                    loop {
                        is_begun.store(true, Ordering::SeqCst);
                        if let Err(error) = write(&target, &mut ones) {
                            break error;
                        }
                    }
                })
            })
            .collect();
        while !is_begun.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        // Vary the moment of the release during the copies.
        (0..round * 500).for_each(|_| std::hint::spin_loop());
        target.release(&Stop::after(None)).expect("it is good until now");
        assert_eq!(freed.load(Ordering::SeqCst), round);
        memory.fill(7);
        for writer in writers {
            let error = writer.join().expect("it does not panic");
            assert!(matches!(error, DataError::Released), "{error:?}");
        }
        assert!(memory.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn a_reused_slot_refuses_the_old_key() {
    let domain = domain().expect("this system has what it takes");
    let (mut memory, freed) = (vec![0_u8; 64], Arc::new(AtomicUsize::new(0)));
    let old = register(&domain, span_of(&mut memory), &freed);
    old.release(&Stop::after(None)).expect("it is good until now");
    let others: Vec<_> = (0..8).map(|_| register(&domain, span_of(&mut memory), &freed)).collect();
    assert!(matches!(write(&old, &mut [1; 64]), Err(DataError::Released)));
    assert!(matches!(old.release(&Stop::after(None)), Err(DataError::Released)));
    for one in &others {
        write(one, &mut [2; 64]).expect("it is good");
        one.release(&Stop::after(None)).expect("it is good until now");
    }
}

#[test]
fn a_view_keeps_released_memory_alive() {
    let domain = domain().expect("this system has what it takes");
    let (mut memory, freed) = (vec![5_u8; 64], Arc::new(AtomicUsize::new(0)));
    let target = register(&domain, span_of(&mut memory), &freed);
    let view = target.view(8, 8).expect("it is good");
    target.release(&Stop::after(None)).expect("a view does not hold it up");
    assert!(!view.is_valid());
    assert_eq!(freed.load(Ordering::SeqCst), 0);
    assert!(matches!(target.view(8, 8), Err(DataError::Released)));
    drop(view);
    wait_for(&freed);
}

#[test]
fn released_memory_is_reclaimed_only_after_its_last_view_is_dropped() {
    let domain = domain().expect("this system has what it takes");
    let (mut memory, freed) = (vec![5_u8; 64], Arc::new(AtomicUsize::new(0)));
    let target = register(&domain, span_of(&mut memory), &freed);
    let Remote { slot, key, .. } = *target.remote();
    let reclaim = || domain.reclaim(slot, key, &Stop::after(None)).expect("nobody copies");
    let view = target.view(8, 8).expect("it is good");
    assert!(!reclaim());
    target.release(&Stop::after(None)).expect("a view does not hold it up");
    assert!(!reclaim());
    drop(view);
    wait_for(&freed);
    let until = Instant::now() + LIMIT;
    while !reclaim() {
        assert!(Instant::now() < until, "it is never free");
        thread::yield_now();
    }
}

#[test]
fn a_handle_lost_in_transit_frees_its_memory() {
    let domain = domain().expect("this system has what it takes");
    let (mut memory, freed) = (vec![5_u8; 64], Arc::new(AtomicUsize::new(0)));
    let target = register(&domain, span_of(&mut memory), &freed);
    let Remote { slot, key, .. } = *target.remote();
    domain.set_transit_timeout(Duration::from_millis(30));
    domain.mark_in_transit(slot, key);
    domain.end_lease(slot, key);
    wait_for(&freed);
    assert!(!domain.lease(slot, key));
}

#[test]
fn ranges_near_the_integer_maximum_are_out_of_bounds() {
    let domain = domain().expect("this system has what it takes");
    let (mut memory, freed) = (vec![0_u8; 64], Arc::new(AtomicUsize::new(0)));
    let target = register(&domain, span_of(&mut memory), &freed);
    let Remote { slot, key, address, .. } = *target.remote();
    let len = u64::MAX;
    let remote = Remote { slot, key, len, address, arena: None, is_on_device: false };
    let forged = Target::ours(&domain, remote);
    let mut bytes = [1_u8; 16];
    for offset in [49, 64, 1 << 32, u64::MAX - 15, u64::MAX] {
        // SAFETY: the bytes are a local variable until this returns.
        let copied = unsafe {
            forged.copy(Direction::Write, span_of(&mut bytes), offset, &Stop::after(None))
        };
        assert!(matches!(copied, Err(DataError::OutOfBounds { .. })), "{offset}: {copied:?}");
    }
    assert_eq!(memory, vec![0; 64]);
}

fn wait_for(freed: &AtomicUsize) {
    let until = Instant::now() + LIMIT;
    while freed.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < until, "the memory is kept");
        thread::yield_now();
    }
}
