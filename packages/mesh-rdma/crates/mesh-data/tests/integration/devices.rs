//! Device memory can be registered like other memory, and no built-in transport accesses it.
#![expect(unsafe_code, reason = "begins copies that are refused")]

use mesh_data::process::domain;
use mesh_data::{CopyLease, DataError, Direction, Domain, Memory, Remote, Span, Stop, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const LEN: usize = 4096;

/// Registers an address that is not mapped.
fn register(domain: &Domain) -> Remote {
    let span = Span { start: 4096, len: LEN };
    let memory = Memory { span, is_writable: true, device: Some(0) };
    let (slot, key) = domain.register(memory, Box::new(())).expect("there is space for one");
    Remote { slot, key, len: LEN as u64, address: 4096, arena: None, is_on_device: true }
}

fn assert_refused(target: &Target) {
    let mut here = vec![0_u8; LEN];
    let span = Span { start: here.as_mut_ptr() as usize, len: LEN };
    for direction in [Direction::Read, Direction::Write] {
        // SAFETY: the bytes are a local variable.
        let copied = unsafe { target.copy(direction, span, 0, &Stop::after(None)) };
        assert!(matches!(copied, Err(DataError::OnDevice)), "{copied:?}");
    }
    assert!(matches!(target.view(0, 8), Err(DataError::OnDevice)));
}

#[test]
fn no_transport_copies_device_memory() {
    let domain = domain().expect("this system has what it takes");
    let remote = register(&domain);
    assert_refused(&Target::ours(&domain, remote));
    // The owner refuses even if the handle does not describe the memory as device memory.
    assert_refused(&Target::ours(&domain, Remote { is_on_device: false, ..remote }));
}

#[test]
fn a_release_waits_for_an_active_copy_lease() {
    let domain = domain().expect("this system has what it takes");
    let remote = register(&domain);
    let lease = CopyLease::ours(&domain, &remote).expect("it is good");
    lease.check().expect("it still is");
    let is_released = Arc::new(AtomicBool::new(false));
    let releasing = {
        let (domain, is_released) = (Arc::clone(&domain), Arc::clone(&is_released));
        thread::spawn(move || {
            domain.release(remote.slot, remote.key, &Stop::after(None)).expect("it was good");
            is_released.store(true, Ordering::SeqCst);
        })
    };
    while lease.check().is_ok() {
        thread::yield_now();
    }
    assert!(!is_released.load(Ordering::SeqCst));
    drop(lease);
    releasing.join().expect("it ends");
    assert!(matches!(CopyLease::ours(&domain, &remote), Err(DataError::Released)));
}
