//! What all threads of one mount share.

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

/// What all threads of one mount share.
pub(crate) struct Session {
    files: Arc<dyn FileSystem>,
    on_panic: Option<PanicHook>,
    /// What the kernel has offered and we have taken.
    pub(crate) features: u32,
    /// Shared with the replies, which may outlive the mount.
    pub(crate) parked: Arc<Parked>,
    /// From when this can be read, the threads are to end.
    pub(crate) stop: OwnedFd,
    is_stopping: AtomicBool,
    /// How many are telling the kernel something. The kernel may need answers for that, so that the
    /// threads do not end before.
    notifying: AtomicUsize,
    serving: Mutex<Serving>,
    ended: Condvar,
}

/// How far a mount is.
#[derive(Default)]
struct Serving {
    /// How many threads there are.
    threads: usize,
    /// Whether the last one has ended, and nobody waits for an answer.
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

    /// Calls the file system. A panic of its becomes `EIO`.
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

    /// Calls the file system where there is nothing to answer.
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
        // There is nobody left to be told of a panic of the hook.
        let _ = catch_unwind(AssertUnwindSafe(|| hook(&Panicked { call, message })));
    }

    /// One more thread serves.
    pub(crate) fn enter(&self) {
        lock(&self.serving).threads += 1;
    }

    /// One thread has ended; the last one leaves nobody waiting for an answer.
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

    /// Has all threads end. What is asked until they have is refused.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        // It can only fail if it was written very often, and then it can be read.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Whether somebody answers the kernel.
    pub(crate) fn is_serving(&self) -> bool {
        !self.is_stopping() && !lock(&self.serving).is_over
    }

    /// Waits until nobody does.
    pub(crate) fn wait(&self) {
        let serving = lock(&self.serving);
        let ended = self.ended.wait_while(serving, |serving| !serving.is_over);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs what tells the kernel something, unless the mount ends.
    pub(crate) fn notifying<T>(&self, notify: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.notifying.fetch_add(1, SeqCst);
        let told = if self.is_stopping() { Err(Errno::NOTCONN) } else { notify() };
        self.notifying.fetch_sub(1, SeqCst);
        told
    }

    /// Whether somebody is telling the kernel something.
    pub(crate) fn is_notifying(&self) -> bool {
        self.notifying.load(SeqCst) > 0
    }
}
