//! Reply to a request that lists a directory.

use crate::abi;
use crate::encode;
use crate::file_system::{Entry, Kind};

/// A part of a directory listing that fits into the kernel's buffer.
#[derive(Debug)]
pub struct DirectoryReply<'a> {
    out: &'a mut Vec<u8>,
    len_max: usize,
    /// Whether the kernel requests the attributes of the files in addition to their names.
    with_entries: bool,
    /// Inode numbers whose entries are in the reply.
    handed_out: &'a mut Vec<u64>,
}

impl<'a> DirectoryReply<'a> {
    /// Creates an empty listing; the previous contents of the buffers are discarded.
    pub(crate) fn new(
        out: &'a mut Vec<u8>,
        handed_out: &'a mut Vec<u64>,
        len_max: usize,
        with_entries: bool,
    ) -> Self {
        out.clear();
        handed_out.clear();
        Self { out, len_max, with_entries, handed_out }
    }

    /// Adds a name; returns whether it fits into the kernel's buffer.
    ///
    /// If it does not fit, return from the call: the kernel repeats the request with the
    /// `next_offset` of the last name that it received. `next_offset` is the offset at which the
    /// listing continues after this name; it must not be 0.
    ///
    /// The closure returns the entry of the file. It is called only if the entry is sent to the
    /// kernel, and counts as one lookup then (see [`FileSystem`](crate::FileSystem)). It is never
    /// called for `.` and `..`, which a listing may contain or omit. Invalid names (empty, longer
    /// than 1024 bytes, or with a slash or a zero byte) are skipped.
    pub fn add(
        &mut self,
        name: &[u8],
        next_offset: u64,
        ino: u64,
        kind: Kind,
        entry: impl FnOnce() -> Entry,
    ) -> bool {
        let is_possible = (1..=abi::NAME_LEN_MAX).contains(&name.len())
            && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        if !is_possible {
            return true;
        }
        let entry_len = if self.with_entries { abi::ENTRY_LEN } else { 0 };
        if self.out.len() + entry_len + encode::listed_len(name) > self.len_max {
            return false;
        }
        if self.with_entries {
            self.add_entry(name, entry);
        }
        encode::listed(self.out, name, next_offset, ino, kind);
        true
    }

    fn add_entry(&mut self, name: &[u8], entry: impl FnOnce() -> Entry) {
        // The kernel does not count a lookup for these two.
        if matches!(name, b"." | b"..") {
            return encode::no_entry(self.out);
        }
        let entry = entry();
        self.handed_out.push(entry.ino);
        encode::entry(self.out, &entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_system::Attributes;

    fn entry(ino: u64) -> Entry {
        let attributes = Attributes {
            ino,
            kind: Kind::File,
            permissions: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            blocks: 0,
            modified_s: 0,
            modified_ns: 0,
        };
        Entry { ino, attributes }
    }

    /// Adds names until one does not fit. Returns the number of names added, the length of the
    /// listing, and the inode numbers handed out.
    fn list(names: &[&str], len_max: usize, with_entries: bool) -> (usize, usize, Vec<u64>) {
        let (mut out, mut handed_out) = (vec![1, 2, 3], vec![9]);
        let mut reply = DirectoryReply::new(&mut out, &mut handed_out, len_max, with_entries);
        let mut add = |(at, name): (usize, &&str)| {
            let ino = at as u64 + 2;
            reply.add(name.as_bytes(), ino, ino, Kind::File, || entry(ino))
        };
        let added = names.iter().enumerate().take_while(|named| add(*named)).count();
        (added, out.len(), handed_out)
    }

    #[test]
    fn entries_that_do_not_fit_hand_out_no_inodes() {
        assert_eq!(list(&["a", "b", "c"], 2 * (128 + 32), true), (2, 320, vec![2, 3]));
        assert_eq!(list(&["a", "b", "c"], 2 * (128 + 32) - 1, true), (1, 160, vec![2]));
        assert_eq!(list(&["a"], 0, true), (0, 0, vec![]));
    }

    #[test]
    fn a_listing_without_attributes_hands_out_no_inodes() {
        assert_eq!(list(&["a", "nine bytes"], 4096, false), (2, 32 + 40, vec![]));
    }

    #[test]
    fn dot_entries_hand_out_no_inodes() {
        assert_eq!(list(&[".", "..", "..."], 4096, true), (3, 3 * 160, vec![4]));
    }

    #[test]
    fn invalid_names_are_skipped() {
        let long = "x".repeat(1025);
        assert_eq!(list(&["", "a/b", "a\0b", &long, "b"], 4096, true), (5, 160, vec![6]));
    }
}
