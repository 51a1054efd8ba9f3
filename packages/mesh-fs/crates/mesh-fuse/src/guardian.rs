//! A process that cleans up when this process dies for any reason.

use crate::attach::KIND;
use crate::error::MountError;
use crate::spawn::spawn;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::env;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

const SHELL: &std::ffi::CStr = c"/bin/sh";
/// Directories that are searched in addition to `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Message that the guardian must exit without any action.
const DISMISS_MESSAGE: &[u8] = b"closed\n";

/// Shell script of the guardian of a mount: `$1` is the file system type, `$2` the source.
///
/// It reads until the other end of the line is closed. It then unmounts each mount with this
/// source, unless something else is mounted over it. The `x` preserves newlines at the end of a
/// path; `printf` decodes the octal escapes of the mount table.
const UNMOUNT_SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM PIPE TSTP TTIN TTOU
cd /
read -r word
[ "$word" = closed ] && exit 0
is_covered() {
    while read -r _ over _ _ at _; do
        [ "$over" = "$1" ] && [ "$at" = "$2" ] && return 0
    done < /proc/self/mountinfo
    return 1
}
while read -r id _ _ _ point rest; do
    case "$rest " in *" - $1 $2 "*) ;; *) continue ;; esac
    is_covered "$id" "$point" && continue
    path=$(printf "$(printf '%s' "$point" | sed 's/%/%%/g')x")
    path=${path%x}
    umount -l "$path" || fusermount3 -u -z -- "$path" || fusermount -u -z -- "$path"
done < /proc/self/mountinfo
"#;

/// A process that runs a shell script when this process dies, or when this value is dropped.
///
/// The script reads a line from its standard input. If the line is `closed`, it must exit without
/// any action; otherwise the line is empty.
#[derive(Debug)]
pub struct Guardian {
    pid: Pid,
    /// Closing this descriptor triggers the script's action.
    line: OwnedFd,
}

impl Guardian {
    /// Starts the guardian, before the resource exists. The arguments are `$1` and so on.
    ///
    /// # Errors
    /// [`MountError::Unguarded`]: the process cannot be started.
    pub fn start(script: &str, arguments: &[&OsStr]) -> Result<Self, MountError> {
        Self::try_start(script, arguments)
            .map_err(|error| MountError::Unguarded { source: error.into() })
    }

    /// Starts a guardian that unmounts the mounts with this source.
    pub(crate) fn of_mount(source: &str) -> Result<Self, MountError> {
        Self::start(UNMOUNT_SCRIPT, &[KIND, source].map(OsStr::new))
    }

    fn try_start(script: &str, arguments: &[&OsStr]) -> Result<Self, Errno> {
        let (line, child_end) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let command = ["sh", "-c", script, "mesh-fuse-guardian"].map(OsStr::new);
        let command = command.iter().chain(arguments).map(|word| CString::new(word.as_bytes()));
        let texts: Result<Vec<_>, _> = command.collect();
        let path = env::var("PATH").unwrap_or_default();
        let path = CString::new(format!("PATH={path}:{DEFAULT_PATH}"));
        let (arguments, path) = (texts.or(Err(Errno::INVAL))?, path.or(Err(Errno::INVAL))?);
        let pid = spawn(SHELL, &arguments, &[path], child_end.as_fd())?;
        Ok(Self { pid, line })
    }

    /// Duplicates the line. The guardian does not act before the duplicate is closed too.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        self.line.try_clone()
    }

    /// Ends the guardian without any action.
    pub fn dismiss(self) {
        // Ignore errors: the guardian may have died.
        let _ = send(&self.line, DISMISS_MESSAGE, SendFlags::NOSIGNAL);
    }
}

impl Drop for Guardian {
    /// Triggers the script's action, and waits for its end.
    fn drop(&mut self) {
        // Takes effect for duplicates in other processes too.
        let _ = shutdown(&self.line, Shutdown::Both);
        // Ignore errors: other code in this process may have reaped the child already.
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}
