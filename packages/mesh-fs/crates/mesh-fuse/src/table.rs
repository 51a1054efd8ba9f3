//! The mount table of the kernel.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const PATH: &str = "/proc/self/mountinfo";

/// A mount and its current location.
#[derive(Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Major and minor number of the device, separated by a colon.
    pub device: String,
    /// Current path; directories above it may have been renamed.
    pub mountpoint: PathBuf,
    /// Whether something else is mounted over it, which an unmount would affect instead.
    pub is_covered: bool,
}

/// Finds the mounts with this file system type and source.
pub(crate) fn find(kind: &str, source: &str) -> io::Result<Vec<Mounted>> {
    let table = fs::read(PATH)?;
    Ok(find_in(&table, |line| line.kind == kind.as_bytes() && line.source == source.as_bytes()))
}

/// Finds the mounts with this file system type that processes of a user serve.
pub(crate) fn find_of_user(kind: &str, user: u32) -> io::Result<Vec<Mounted>> {
    let table = fs::read(PATH)?;
    let option = format!("user_id={user}");
    let is_of_user = |line: &Line<'_>| {
        line.options.split(|byte| *byte == b',').any(|one| one == option.as_bytes())
    };
    Ok(find_in(&table, |line| line.kind == kind.as_bytes() && is_of_user(line)))
}

/// Finds a mount by its id, as returned by `statx`; `None` if it is not mounted any more.
///
/// # Errors
/// The mount table cannot be read.
pub fn find_mount(number: u64) -> io::Result<Option<Mounted>> {
    let table = fs::read(PATH)?;
    Ok(find_in(&table, |line| line.id == number.to_string().as_bytes()).pop())
}

/// A line of the table: `36 35 98:0 /root /mountpoint options [fields] - type source options`.
struct Line<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    device: &'a [u8],
    mountpoint: &'a [u8],
    kind: &'a [u8],
    source: &'a [u8],
    /// Options of the file system, separated by commas.
    options: &'a [u8],
}

impl<'a> Line<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let (_root, mountpoint) = (fields.next()?, fields.next()?);
        fields.find(|field| *field == b"-")?;
        let (kind, source, options) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { id, parent, device, mountpoint, kind, source, options })
    }
}

fn find_in(table: &[u8], is_ours: impl Fn(&Line<'_>) -> bool) -> Vec<Mounted> {
    let lines: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(Line::read).collect();
    let ours = lines.iter().filter(|line| is_ours(line));
    let mounted = ours.map(|ours| Mounted {
        device: String::from_utf8_lossy(ours.device).into_owned(),
        mountpoint: OsString::from_vec(unescape(ours.mountpoint)).into(),
        is_covered: lines
            .iter()
            .any(|line| line.parent == ours.id && line.mountpoint == ours.mountpoint),
    });
    mounted.collect()
}

/// Decodes escapes: whitespace and backslashes appear as a backslash and three octal digits.
fn unescape(mut escaped: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(escaped.len());
    while let Some((first, rest)) = escaped.split_first() {
        if let [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ..] = escaped {
            bytes.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
            escaped = &escaped[4..];
        } else {
            bytes.push(*first);
            escaped = rest;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
36 22 0:31 / /a\\040b\\134c ro,nosuid shared:2 master:1 - fuse.mesh one ro,user_id=0\n\
37 22 0:32 / /d ro,nosuid - fuse.mesh two ro\n\
38 37 0:33 / /d rw - tmpfs tmpfs rw\n\
39 22 0:34 / /e rw - tmpfs one rw\n\
short line\n";

    fn is_of(source: &str) -> impl Fn(&Line<'_>) -> bool {
        move |line| line.kind == b"fuse.mesh" && line.source == source.as_bytes()
    }

    #[test]
    fn a_mount_is_found_by_its_source() {
        let found = find_in(TABLE, is_of("one"));
        let expected =
            Mounted { device: "0:31".into(), mountpoint: "/a b\\c".into(), is_covered: false };
        assert_eq!(found, [expected]);
        assert_eq!(find_in(TABLE, is_of("three")), []);
    }

    #[test]
    fn a_covered_mount_is_detected() {
        let found = find_in(TABLE, is_of("two"));
        assert!(found.iter().all(|mounted| mounted.is_covered) && found.len() == 1);
    }

    #[test]
    fn invalid_escapes_are_left_unchanged() {
        assert_eq!(unescape(br"a\9\04"), br"a\9\04");
    }
}
