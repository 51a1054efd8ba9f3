//! Validity of names of directory entries.

use crate::format::limits::NAME_LEN_MAX;

/// Returns whether bytes are a valid name of a directory entry.
///
/// A name has 1 to 255 bytes, contains neither a slash nor a zero byte, and is neither `.` nor
/// `..`.
pub fn is_name(name: &[u8]) -> bool {
    let has_length = (1..=NAME_LEN_MAX).contains(&name.len());
    let is_special = matches!(name, b"." | b"..");
    has_length && !is_special && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_path_components_are_valid_names() {
        for name in [&b"a"[..], b"...", b".a", b"\xff", &[b'n'; NAME_LEN_MAX]] {
            assert!(is_name(name), "{name:?}");
        }
        for name in [&b""[..], b".", b"..", b"/", b"a/b", b"a\0", &[b'n'; NAME_LEN_MAX + 1]] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
