//! State that all threads of a mount share.

use crate::file_system::{FileSystem, FsResult};
use crate::lock;
use crate::options::{PanicHook, Panicked};
use crate::suspended_reads::SuspendedReads;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// State that all threads of a mount share.
pub(crate) struct Session {
    files: Arc<dyn FileSystem>,
    on_panic: Option<PanicHook>,
    /// Features that were negotiated with the kernel.
    pub(crate) features: u32,
    /// Shared with replies, which may outlive the mount.
    pub(crate) suspended_reads: Arc<SuspendedReads>,
    /// Eventfd that is readable when the threads must end.
    pub(crate) stop: OwnedFd,
    is_stopping: AtomicBool,
    /// Number of threads that are sending notifications. The kernel may send requests while it
    /// processes one, so the worker threads must not end before.
    notifying: AtomicUsize,
    serving: Mutex<Serving>,
    completed: Condvar,
}

/// Progress of a mount.
#[derive(Default)]
struct Serving {
    /// Number of threads.
    threads: usize,
    /// Whether the last thread has ended and all suspended reads have been answered.
    is_complete: bool,
}

impl Session {
    pub(crate) fn new(
        files: Arc<dyn FileSystem>,
        on_panic: Option<PanicHook>,
        features: u32,
    ) -> Result<Self, Errno> {
        Ok(Self {
            files,
            on_panic,
            features,
            suspended_reads: Arc::default(),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::new(false),
            notifying: AtomicUsize::new(0),
            serving: Mutex::default(),
            completed: Condvar::new(),
        })
    }

    /// Calls the file system. A panic results in `EIO`.
    pub(crate) fn call<T>(
        &self,
        call: &'static str,
        method: impl FnOnce(&dyn FileSystem) -> FsResult<T>,
    ) -> FsResult<T> {
        let result = catch_unwind(AssertUnwindSafe(|| method(&*self.files)));
        result.unwrap_or_else(|cause| {
            self.report(call, &*cause);
            Err(Errno::IO)
        })
    }

    /// Calls a method of the file system that returns nothing.
    pub(crate) fn call_infallible(&self, call: &'static str, method: impl FnOnce(&dyn FileSystem)) {
        let _ = self.call(call, |files| {
            method(files);
            Ok(())
        });
    }

    fn report(&self, call: &'static str, cause: &(dyn Any + Send)) {
        let Some(hook) = &self.on_panic else { return };
        let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| cause.downcast_ref::<String>().cloned());
        let message = text.unwrap_or_else(|| "something that is not text".into());
        // Ignore a panic of the hook, which cannot be reported.
        let _ = catch_unwind(AssertUnwindSafe(|| hook(&Panicked { call, message })));
    }

    /// Registers a thread.
    pub(crate) fn enter(&self) {
        lock(&self.serving).threads += 1;
    }

    /// Unregisters a thread. The last one fails all suspended reads.
    pub(crate) fn leave(&self) {
        let mut serving = lock(&self.serving);
        serving.threads -= 1;
        let is_last = serving.threads == 0;
        drop(serving);
        if is_last {
            self.abandon_reads();
            lock(&self.serving).is_complete = true;
            self.completed.notify_all();
        }
    }

    fn abandon_reads(&self) {
        for (id, read) in self.suspended_reads.close() {
            read.device.refuse(id, Errno::NOTCONN);
            self.call_infallible("abandon", |files| files.abandon(read.ino, id));
        }
    }

    /// Stops all threads. Requests that arrive until they end are refused.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        // This fails only if the counter overflows, and the eventfd is readable then.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Returns whether requests are served.
    pub(crate) fn is_serving(&self) -> bool {
        !self.is_stopping() && !lock(&self.serving).is_complete
    }

    /// Waits until the last thread has ended.
    pub(crate) fn wait(&self) {
        let serving = lock(&self.serving);
        let completed = self.completed.wait_while(serving, |serving| !serving.is_complete);
        drop(completed.unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs a function that sends a notification to the kernel, unless the mount ends.
    pub(crate) fn notifying<T>(&self, notify: impl FnOnce() -> FsResult<T>) -> FsResult<T> {
        self.notifying.fetch_add(1, SeqCst);
        let result = if self.is_stopping() { Err(Errno::NOTCONN) } else { notify() };
        self.notifying.fetch_sub(1, SeqCst);
        result
    }

    /// Returns whether a notification is being sent.
    pub(crate) fn is_notifying(&self) -> bool {
        self.notifying.load(SeqCst) > 0
    }
}
