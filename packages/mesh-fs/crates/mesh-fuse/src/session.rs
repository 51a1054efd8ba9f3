//! State that all threads of a mount share.

use crate::file_system::{Answer, FileSystem};
use crate::lock;
use crate::options::{PanicHook, Panicked};
use crate::parked::Parked;
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
    pub(crate) parked: Arc<Parked>,
    /// Eventfd that is readable when the threads must end.
    pub(crate) stop: OwnedFd,
    is_stopping: AtomicBool,
    /// Number of threads that are sending notifications. The kernel may send requests while it
    /// processes one, so the worker threads must not end before.
    notifying: AtomicUsize,
    serving: Mutex<Serving>,
    ended: Condvar,
}

/// Progress of a mount.
#[derive(Default)]
struct Serving {
    /// Number of threads.
    threads: usize,
    /// Whether the last thread has ended and all suspended reads have been answered.
    is_over: bool,
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
            parked: Arc::default(),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::new(false),
            notifying: AtomicUsize::new(0),
            serving: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Calls the file system. A panic results in `EIO`.
    pub(crate) fn call<T>(
        &self,
        call: &'static str,
        asked: impl FnOnce(&dyn FileSystem) -> Answer<T>,
    ) -> Answer<T> {
        let answer = catch_unwind(AssertUnwindSafe(|| asked(&*self.files)));
        answer.unwrap_or_else(|cause| {
            self.report(call, &*cause);
            Err(Errno::IO)
        })
    }

    /// Calls a method of the file system that returns nothing.
    pub(crate) fn tell(&self, call: &'static str, told: impl FnOnce(&dyn FileSystem)) {
        let _ = self.call(call, |files| {
            told(files);
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
            self.abandon_parked();
            lock(&self.serving).is_over = true;
            self.ended.notify_all();
        }
    }

    fn abandon_parked(&self) {
        for (id, waiting) in self.parked.close() {
            waiting.device.refuse(id, Errno::NOTCONN);
            self.tell("abandon", |files| files.abandon(waiting.ino, id));
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
        !self.is_stopping() && !lock(&self.serving).is_over
    }

    /// Waits until the last thread has ended.
    pub(crate) fn wait(&self) {
        let serving = lock(&self.serving);
        let ended = self.ended.wait_while(serving, |serving| !serving.is_over);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs a function that sends a notification to the kernel, unless the mount ends.
    pub(crate) fn notifying<T>(&self, notify: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.notifying.fetch_add(1, SeqCst);
        let told = if self.is_stopping() { Err(Errno::NOTCONN) } else { notify() };
        self.notifying.fetch_sub(1, SeqCst);
        told
    }

    /// Returns whether a notification is being sent.
    pub(crate) fn is_notifying(&self) -> bool {
        self.notifying.load(SeqCst) > 0
    }
}
