//! Files as block devices, for kernels that mount no files.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// How often another process may be faster in taking a device.
const TRIES_MAX: usize = 32;
const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
const READ_ONLY: u32 = 1;
/// The device is free again when nobody uses it any more.
const AUTOCLEAR: u32 = 4;

/// What the kernel calls `loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    settings: Settings,
    reserved: [u64; 8],
}

/// What the kernel calls `loop_info64`.
#[repr(C)]
struct Settings {
    before: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 64 + 64 + 32],
    after: [u64; 2],
}

/// A file as a block device that can be read; it goes when this is dropped and nothing is mounted
/// from it.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    _held: OwnedFd,
}

impl LoopDevice {
    /// Takes a free device for a file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..TRIES_MAX {
            // SAFETY: the call takes no memory of ours.
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
        // A descriptor is not negative.
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
    // SAFETY: the kernel reads a structure of this form, which lives longer than the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) }).map(drop)
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

// As the kernel has them.
const _: () = assert!(mem::size_of::<Settings>() == 232 && mem::size_of::<Config>() == 304);
