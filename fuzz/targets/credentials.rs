//! Arbitrary text instead of a key file, or a modified key file: the error message explains the
//! cause.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded};
use mesh_trust::{Authority, Identity, Role};
use mesh_wire::id::JobId;
use rustls_pki_types::UnixTime;
use std::sync::LazyLock;
use std::time::Duration;

/// Four times the maximum length of a text that is read.
const MEMORY_MAX: usize = 128 << 10;
const CHANGES_MAX: usize = 8;

/// The files of an authority and of a member, created once for each run of the fuzzer.
static FILES: LazyLock<[String; 2]> = LazyLock::new(|| {
    let (now, day) = (UnixTime::now(), Duration::from_secs(86_400));
    let authority = Authority::create(JobId([7; 16]), day, now).expect("a day is a good lifetime");
    let worker = authority.issue(Role::Worker, "fuzzed", now).expect("the name is allowed");
    [authority.to_pem().to_string(), worker.to_pem().to_string()]
});

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let mut text = match input.u8() % 4 {
        0 => FILES[0].clone(),
        1 => FILES[1].clone(),
        _ => String::from_utf8_lossy(input.rest()).into_owned(),
    };
    let whole = text.clone();
    for _ in 0..CHANGES_MAX {
        change(&mut text, &mut input);
    }
    bounded(MEMORY_MAX, || {
        let identity = Identity::from_pem(&text);
        if let Err(error) = &identity {
            assert!(error.to_string().starts_with("the identity cannot be read, "));
        }
        let authority = Authority::from_pem(&text);
        assert!(identity.is_err() || authority.is_err(), "a file is one or the other");
        let is_file = FILES.contains(&text);
        assert!(!is_file || text != whole || identity.is_ok() || authority.is_ok());
    });
});

/// Replaces a part of the text by a few bytes of the input.
fn change(text: &mut String, input: &mut Input<'_>) {
    if input.is_empty() {
        return;
    }
    let start = usize::from(input.u16()) % (text.len() + 1);
    let (gone_len, new_len) = (usize::from(input.u8()), usize::from(input.u8() % 32));
    let end = (start + gone_len).min(text.len());
    if text.is_char_boundary(start) && text.is_char_boundary(end) {
        text.replace_range(start..end, &String::from_utf8_lossy(input.take(new_len)));
    }
}
