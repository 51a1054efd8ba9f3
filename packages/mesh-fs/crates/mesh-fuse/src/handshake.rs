//! Initialization of a mount: negotiation of version and features with the kernel.

use crate::abi;
use crate::decode::{Operation, Request, decode};
use crate::device::Device;
use crate::encode;
use crate::error::MountError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Size of the receive buffer; the kernel requires at least this much.
const BUFFER_LEN: usize = 8192 + 4096;
/// Timeout for the initialization request, which the kernel sends during the mount.
const TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Maximum length of a read in bytes.
const READ_LEN_MAX: usize = 1 << 20;

/// Negotiates with the kernel; returns the features in use.
pub(crate) fn negotiate(device: &Device, read_ahead_len: u32) -> Result<u32, MountError> {
    let system = MountError::system::<Errno>;
    let doing = "the handshake with the kernel failed";
    let pages_max = (READ_LEN_MAX / rustix::param::page_size()).clamp(1, usize::from(u16::MAX));
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let mut watched = [PollFd::new(device, PollFlags::IN)];
        let is_there = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&TIMEOUT)));
        if is_there.map_err(system(doing))? == 0 {
            return Err(system(doing)(Errno::TIMEDOUT));
        }
        let len = match device.receive(&mut buffer) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => continue,
            Err(error) => return Err(system(doing)(error)),
        };
        let Ok(Request { id, operation: Operation::Init(offer), .. }) = decode(&buffer[..len])
        else {
            return Err(system(doing)(Errno::PROTO));
        };
        let (major, minor) = (offer.major, offer.minor);
        if major < abi::MAJOR || (major == abi::MAJOR && minor < abi::MINOR_MIN) {
            device.refuse(id, Errno::PROTO);
            return Err(MountError::KernelTooOld { major, minor });
        }
        let mut out = Vec::new();
        encode::init_reply(&mut out, offer, read_ahead_len, pages_max as u16);
        device.answer(id, &[&out]).map_err(system(doing))?;
        // A newer kernel repeats the request with our version.
        if major == abi::MAJOR {
            return Ok(offer.features & abi::feature::WANTED);
        }
    }
}
