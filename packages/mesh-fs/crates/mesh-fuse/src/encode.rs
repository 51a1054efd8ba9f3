//! Encoding of replies and notifications.

use crate::abi;
use crate::decode::Offer;
use crate::file_system::{Attributes, Entry, Kind, Space};

/// Time for which the kernel may cache a reply: practically unlimited.
const FOREVER_S: u64 = u32::MAX as u64;
/// Preferred block size for reads.
const BLOCK_LEN: u32 = 4096;
/// Maximum number of background reads that the kernel may have pending.
const BACKGROUND_MAX: u16 = 64;
/// Number of pending background reads at which the kernel starts to throttle.
const CONGESTED: u16 = 48;
/// Minimum that the kernel accepts; the file system is read-only.
const WRITE_LEN_MAX: u32 = 4096;

/// Appends numbers in native byte order.
pub(crate) trait Fields {
    /// Appends four bytes.
    fn u32(&mut self, number: u32);
    /// Appends eight bytes.
    fn u64(&mut self, number: u64);
}

impl Fields for Vec<u8> {
    fn u32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_ne_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_ne_bytes());
    }
}

/// Encodes the header of a reply.
pub(crate) fn header(body_len: usize, error: i32, id: u64) -> [u8; abi::REPLY_HEADER_LEN] {
    let mut bytes = [0; abi::REPLY_HEADER_LEN];
    // No reply is that long, and the kernel would reject a wrong length.
    let len = u32::try_from(body_len + abi::REPLY_HEADER_LEN).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..8].copy_from_slice(&error.to_ne_bytes());
    bytes[8..].copy_from_slice(&id.to_ne_bytes());
    bytes
}

/// Encodes the reply to the kernel's initialization request.
pub(crate) fn init_reply(out: &mut Vec<u8>, offer: Offer, read_ahead_len: u32, pages_max: u16) {
    out.u32(abi::MAJOR);
    out.u32(offer.minor.min(abi::MINOR));
    out.u32(read_ahead_len);
    out.u32(offer.features & abi::feature::WANTED);
    out.extend_from_slice(&BACKGROUND_MAX.to_ne_bytes());
    out.extend_from_slice(&CONGESTED.to_ne_bytes());
    out.u32(WRITE_LEN_MAX);
    let time_granularity_ns = 1;
    out.u32(time_granularity_ns);
    out.extend_from_slice(&pages_max.to_ne_bytes());
    let unused = [0; 34];
    out.extend_from_slice(&unused);
}

/// Encodes the entry of an existing file.
pub(crate) fn entry(out: &mut Vec<u8>, entry: &Entry) {
    out.u64(entry.ino);
    out.u64(0); // The generation: a number is not reused while the kernel knows it.
    out.u64(FOREVER_S);
    out.u64(FOREVER_S);
    out.u64(0); // Nanoseconds of both cache times.
    attributes(out, &entry.attributes);
}

/// Encodes a negative entry; in a listing, a name without attributes.
pub(crate) fn no_entry(out: &mut Vec<u8>) {
    out.u64(0);
    out.u64(0);
    out.u64(FOREVER_S);
    out.resize(out.len() + abi::ENTRY_LEN - 24, 0);
}

/// Encodes the reply to a request for attributes.
pub(crate) fn attributes_reply(out: &mut Vec<u8>, node: &Attributes) {
    out.u64(FOREVER_S);
    out.u64(0);
    attributes(out, node);
}

fn attributes(out: &mut Vec<u8>, node: &Attributes) {
    out.u64(node.ino);
    out.u64(node.size);
    out.u64(node.blocks);
    // The times of access, modification and status change are the same.
    (0..3).for_each(|_| out.u64(node.modified_s.cast_unsigned()));
    (0..3).for_each(|_| out.u32(node.modified_ns));
    out.u32(node.kind.mode() | u32::from(node.permissions & 0o7777));
    out.u32(node.links);
    out.u32(node.uid);
    out.u32(node.gid);
    out.u32(device(node.device));
    out.u32(BLOCK_LEN);
    out.u32(0); // Flags.
}

/// Encodes a device number as the kernel does: 12 bits of the major between 8 and 12 bits of the
/// minor number.
fn device(number: u64) -> u32 {
    let major = rustix::fs::major(number) & 0xfff;
    let minor = rustix::fs::minor(number);
    minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12
}

/// Appends a name to a listing. Its header must be aligned to eight bytes.
pub(crate) fn listed(out: &mut Vec<u8>, name: &[u8], next_offset: u64, ino: u64, kind: Kind) {
    out.u64(ino);
    out.u64(next_offset);
    out.u32(u32::try_from(name.len()).expect("the length of a name was checked"));
    out.u32(kind.mode() >> 12);
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Returns the encoded length of a name in a listing.
pub(crate) fn listed_len(name: &[u8]) -> usize {
    (abi::LISTED_LEN + name.len()).next_multiple_of(8)
}

/// Encodes the reply to an open of a file or directory.
pub(crate) fn opened(out: &mut Vec<u8>, flags: u32) {
    out.u64(0);
    out.u32(flags);
    out.u32(0);
}

/// Encodes the reply to `statfs`.
pub(crate) fn space(out: &mut Vec<u8>, space: &Space) {
    out.u64(space.blocks);
    out.u64(space.blocks_free);
    out.u64(space.blocks_free); // Free blocks for unprivileged users.
    out.u64(space.files);
    out.u64(space.files_free);
    out.u32(space.block_len);
    out.u32(space.name_len_max);
    out.u32(space.block_len);
    let unused = [0; 28];
    out.extend_from_slice(&unused);
}

/// Encodes the length of an extended attribute, or of the list of names.
pub(crate) fn xattr_len(out: &mut Vec<u8>, len: usize) {
    out.u32(u32::try_from(len).unwrap_or(u32::MAX));
    out.u32(0);
}

/// Encodes the invalidation of a range of a file.
pub(crate) fn invalid_node(ino: u64, offset: i64, len: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    out.u64(ino);
    out.u64(offset.cast_unsigned());
    out.u64(len.cast_unsigned());
    out
}

/// Encodes the invalidation of a name. The name and a zero byte follow.
pub(crate) fn invalid_entry(parent: u64, name_len: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.u64(parent);
    out.u32(name_len);
    out.u32(0);
    out
}

/// Encodes the deletion of a name. The name and a zero byte follow.
pub(crate) fn deleted(parent: u64, child: u64, name_len: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    out.u64(parent);
    out.u64(child);
    out.u32(name_len);
    out.u32(0);
    out
}
