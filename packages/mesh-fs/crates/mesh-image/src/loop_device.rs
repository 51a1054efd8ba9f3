//! Files as block devices, for kernels that cannot mount files.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Maximum number of attempts if other processes take the same free device first.
const TRIES_MAX: usize = 32;
const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
const READ_ONLY: u32 = 1;
/// The kernel releases the device after its last use.
const AUTOCLEAR: u32 = 4;

/// `loop_config` of the kernel.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    settings: Settings,
    reserved: [u64; 8],
}

/// `loop_info64` of the kernel.
#[repr(C)]
struct Settings {
    before: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 64 + 64 + 32],
    after: [u64; 2],
}

/// A file as a read-only block device.
///
/// The device is released when this is dropped and nothing is mounted from it.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    _held: OwnedFd,
}

impl LoopDevice {
    /// Attaches a file to a free device.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..TRIES_MAX {
            // SAFETY: this ioctl does not access memory of this process.
            let number = check(unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) })?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).open(&path)?;
            match configure(&device, &file) {
                Ok(()) => return Ok(Self { path, _held: device.into() }),
                Err(Errno::BUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: &File) -> Result<(), Errno> {
    let config = Config {
        // The cast is lossless: a file descriptor is not negative.
        fd: file.as_raw_fd() as u32,
        block_size: 0,
        settings: Settings {
            before: [0; 5],
            number: 0,
            encryption: [0; 2],
            flags: READ_ONLY | AUTOCLEAR,
            names: [0; 64 + 64 + 32],
            after: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads a structure of this layout, which outlives the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) }).map(drop)
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

// The sizes in the kernel.
const _: () = assert!(mem::size_of::<Settings>() == 232 && mem::size_of::<Config>() == 304);
