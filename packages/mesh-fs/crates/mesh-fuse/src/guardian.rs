//! A process that tidies up when this one dies, however that happens.

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
/// Where programs are besides what `PATH` says.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What is said to it when there is nothing left to do.
const DISMISSAL: &[u8] = b"closed\n";

/// What it runs for a mount: `$1` is the kind of the mount, `$2` its source.
///
/// It reads until the other end of the line is closed. It unmounts what has our source and nothing
/// mounted over it. The `x` keeps what a path may end with; `printf` reads the octal numbers that
/// the table has instead of blanks.
pub(crate) const UNMOUNTING: &str = r#"
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

/// A process that runs a script for the shell when this process dies, or when this is dropped.
///
/// The script reads a line, which is empty then; it is `closed` when there is nothing to do.
#[derive(Debug)]
pub struct Guardian {
    pid: Pid,
    /// It goes to work when this is closed.
    line: OwnedFd,
}

impl Guardian {
    /// Starts it, before there is anything to look after; the arguments are `$1` and so on.
    ///
    /// # Errors
    /// [`MountError::Unguarded`]: it cannot be started.
    pub fn start(script: &str, arguments: &[&OsStr]) -> Result<Self, MountError> {
        Self::try_start(script, arguments)
            .map_err(|error| MountError::Unguarded { source: error.into() })
    }

    fn try_start(script: &str, arguments: &[&OsStr]) -> Result<Self, Errno> {
        let (line, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let words = ["sh", "-c", script, "mesh-fuse-guardian"].map(OsStr::new);
        let words = words.iter().chain(arguments).map(|word| CString::new(word.as_bytes()));
        let texts: Result<Vec<_>, _> = words.collect();
        let path = env::var("PATH").unwrap_or_default();
        let path = CString::new(format!("PATH={path}:{USUAL}"));
        let (arguments, path) = (texts.or(Err(Errno::INVAL))?, path.or(Err(Errno::INVAL))?);
        let pid = spawn(SHELL, &arguments, &[path], theirs.as_fd())?;
        Ok(Self { pid, line })
    }

    /// One more end of the line, for whom the guardian is to wait as well.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        self.line.try_clone()
    }

    /// Has it end without doing anything.
    pub fn dismiss(self) {
        // If it has died, it needs not be told.
        let _ = send(&self.line, DISMISSAL, SendFlags::NOSIGNAL);
    }
}

impl Drop for Guardian {
    /// Has it go to work, and end.
    fn drop(&mut self) {
        // For copies in other processes as well.
        let _ = shutdown(&self.line, Shutdown::Both);
        // Others in this process may have waited for it; then there is nothing to wait for.
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}
