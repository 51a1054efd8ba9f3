//! The helper program `fusermount3`, which mounts for unprivileged processes.

use crate::attach::SUBTYPE;
use crate::error::MountError;
use crate::guardian::Guardian;
use crate::options::MountOptions;
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::env;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Possible names of the program.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];
/// Directories that are searched in addition to `PATH`.
const DEFAULT_DIRECTORIES: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];

/// The helper program that mounts for unprivileged processes.
#[derive(Debug)]
pub(crate) struct Fusermount {
    program: PathBuf,
}

impl Fusermount {
    /// Searches for the program.
    pub(crate) fn find() -> Option<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let places: Vec<_> =
            env::split_paths(&path).chain(DEFAULT_DIRECTORIES.map(PathBuf::from)).collect();
        let programs = NAMES.iter().flat_map(|name| places.iter().map(move |at| at.join(name)));
        let program =
            programs.into_iter().find(|program| program.is_absolute() && program.is_file())?;
        Some(Self { program })
    }

    /// Mounts through the program; returns the FUSE device.
    pub(crate) fn mount(
        &self,
        mountpoint: &Path,
        source: &str,
        options: &MountOptions,
        guardian: &Guardian,
    ) -> Result<OwnedFd, MountError> {
        let doing = "cannot run fusermount3 to mount";
        let (own_end, child_end) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(MountError::system(doing))?;
        let other = if options.allow_other { ",allow_other" } else { "" };
        let mount_options =
            format!("ro,nosuid,nodev,default_permissions,fsname={source},subtype={SUBTYPE}{other}");
        // The program inherits the guardian's line, so the guardian also waits for the program to
        // exit before it reads the mount table.
        let line = guardian.line().map_err(MountError::system(doing))?;
        let child = Command::new(&self.program)
            .args(["-o", &mount_options, "--"])
            .arg(mountpoint)
            .env("_FUSE_COMMFD", "0")
            .stdin(child_end)
            .stdout(line)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(MountError::system(doing))?;
        let received = receive_descriptor(&own_end);
        let message = child.wait_with_output().map_err(MountError::system(doing))?.stderr;
        match received.map_err(MountError::system(doing))? {
            Some(device) => Ok(device),
            None => Err(self.failure(&message)),
        }
    }

    /// Unmounts through the program, even if files are open.
    pub(crate) fn unmount(&self, mountpoint: &Path) -> Result<(), MountError> {
        let unmounting = Command::new(&self.program)
            .args(["-u", "-z", "--"])
            .arg(mountpoint)
            .stdin(Stdio::null())
            .output();
        let output = unmounting.map_err(MountError::system("cannot run fusermount3 to unmount"))?;
        if output.status.success() { Ok(()) } else { Err(self.failure(&output.stderr)) }
    }

    fn failure(&self, message: &[u8]) -> MountError {
        let message = String::from_utf8_lossy(message);
        let lines: Vec<_> =
            message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let message = if lines.is_empty() { "no reason given".into() } else { lines.join("; ") };
        MountError::Refused { fusermount: self.program.clone(), message }
    }
}

/// Receives a file descriptor; `None` if the other end is closed without sending one.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    match received {
        Ok(_) => {}
        Err(Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fds.last())
}
