//! Any text in the place of a key file: it is refused in words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_trust::{Authority, Identity};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Identity::from_pem(&text) {
        assert!(error.to_string().starts_with("the identity cannot be read, "));
    }
    let _ = Authority::from_pem(&text);
});
