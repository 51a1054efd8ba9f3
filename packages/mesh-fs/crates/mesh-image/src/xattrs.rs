//! Extended attributes as they are stored after an inode.

use crate::format::XATTRS_LEN_MAX;

/// Length of the header, which contains no name filter and no shared attributes.
const HEADER_LEN: usize = 12;
/// Prefixes of names that are encoded as a number.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"user.", 1),
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"trusted.", 4),
    (b"security.", 6),
];

/// Encodes extended attributes; the length is a multiple of four.
///
/// The result is empty if no attribute can be encoded. Attributes that the format cannot represent
/// are left out.
pub(crate) fn encode<'a>(xattrs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in xattrs {
        let Some((number, rest)) = split(name) else { continue };
        let (Ok(name_len), Ok(value_len)) = (u8::try_from(rest.len()), u16::try_from(value.len()))
        else {
            continue;
        };
        let len = (4 + rest.len() + value.len()).next_multiple_of(4);
        if out.len().max(HEADER_LEN) + len > XATTRS_LEN_MAX {
            continue;
        }
        if out.is_empty() {
            out.resize(HEADER_LEN, 0);
        }
        let end = out.len() + len;
        out.extend([name_len, number]);
        out.extend(value_len.to_le_bytes());
        out.extend(rest);
        out.extend(value);
        out.resize(end, 0);
    }
    out
}

/// Returns the number of the prefix of a name, and the rest of the name.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(prefix, number)| Some((*number, name.strip_prefix(*prefix)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_aligned_behind_a_header() {
        let bytes = encode([(&b"user.a"[..], &b"xyz"[..])].into_iter());
        assert_eq!(bytes[HEADER_LEN..], *b"\x01\x01\x03\0axyz");
        assert_eq!(encode(std::iter::empty()), []);
    }

    #[test]
    fn what_has_no_place_is_left_out() {
        let long = vec![0; 1 << 16];
        let all = [(&b"odd"[..], &b"x"[..]), (&b"user.long"[..], &long[..])];
        assert_eq!(encode(all.into_iter()), []);
        let many = vec![0; 40_000];
        let names: Vec<_> = (0..20).map(|nth| format!("user.{nth}")).collect();
        let all = names.iter().map(|name| (name.as_bytes(), &many[..]));
        assert!(encode(all).len() <= XATTRS_LEN_MAX);
    }
}
