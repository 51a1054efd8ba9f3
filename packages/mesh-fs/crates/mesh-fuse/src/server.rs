//! One request, and its answer.

use crate::abi::{self, feature};
use crate::decode::{Operation, Request, decode};
use crate::device::Device;
use crate::directory::DirectoryReply;
use crate::encode;
use crate::file_system::{Answer, Seek};
use crate::parked::Waiting;
use crate::reply::ReadReply;
use crate::session::Session;
use rustix::io::Errno;
use std::sync::Arc;

/// What answers the requests that one thread receives.
pub(crate) struct Server {
    session: Arc<Session>,
    device: Arc<Device>,
    /// What is answered with, but for bytes of files; kept for the room that it has.
    out: Vec<u8>,
    /// Which files were handed out by the listing under way.
    handed_out: Vec<u64>,
}

impl Server {
    pub(crate) fn new(session: Arc<Session>, device: Arc<Device>) -> Self {
        Self { session, device, out: Vec::new(), handed_out: Vec::new() }
    }

    /// Answers one request, whatever it is.
    pub(crate) fn serve(&mut self, bytes: &[u8]) {
        match decode(bytes) {
            Ok(Request { id, operation, .. }) if self.session.is_stopping() => {
                if operation.wants_reply() {
                    self.device.refuse(id, Errno::NOTCONN);
                }
            }
            Ok(request) => self.answer(request),
            Err(malformed) => {
                if let Some(id) = malformed.id {
                    self.device.refuse(id, Errno::INVAL);
                }
            }
        }
    }

    fn answer(&mut self, request: Request<'_>) {
        let Request { id, ino, operation } = request;
        self.out.clear();
        let answer = match operation {
            Operation::Lookup(name) => return self.lookup(id, ino, name),
            Operation::Read { offset, len } => return self.read(id, ino, offset, len),
            Operation::ReadDirectory { offset, len, with_entries } => {
                return self.read_directory(id, ino, offset, len as usize, with_entries);
            }
            Operation::Forget(lookups) => return self.forget(ino, lookups),
            Operation::ForgetMany(forgets) => {
                return forgets.for_each(|(ino, lookups)| self.forget(ino, lookups));
            }
            Operation::Interrupt(interrupted) => return self.interrupt(interrupted),
            Operation::Remark => return,
            Operation::Attributes => self.attributes(ino),
            Operation::ReadLink => self.read_link(ino),
            Operation::Open => self.open(feature::NO_OPEN_SUPPORT, abi::OPEN_KEEP_CACHE),
            Operation::OpenDirectory => {
                let flags = abi::OPEN_KEEP_CACHE | abi::OPEN_CACHE_DIRECTORY;
                self.open(feature::NO_OPENDIR_SUPPORT, flags)
            }
            Operation::Xattr { name, len_max } => self.xattr(ino, name, len_max),
            Operation::XattrNames { len_max } => self.xattr_names(ino, len_max),
            Operation::Space => self.space(),
            Operation::Seek { offset, whence } => self.seek(ino, offset, whence),
            Operation::Nothing => Ok(()),
            Operation::Write => Err(Errno::ROFS),
            Operation::Unknown => Err(Errno::NOSYS),
            // A mount begins once.
            Operation::Init(_) => Err(Errno::IO),
        };
        match answer {
            // If the kernel does not wait any more, there is nobody to be told.
            Ok(()) => drop(self.device.answer(id, &[&self.out])),
            Err(error) => self.device.refuse(id, error),
        }
    }

    fn lookup(&mut self, id: u64, parent: u64, name: &[u8]) {
        match self.session.call("lookup", |files| files.lookup(parent, name)) {
            Ok(entry) => {
                encode::entry(&mut self.out, &entry);
                if self.device.answer(id, &[&self.out]).is_err() {
                    self.forget(entry.ino, 1);
                }
            }
            Err(Errno::NOENT) => {
                encode::no_entry(&mut self.out);
                // If the kernel does not wait any more, there is nobody to be told.
                let _ = self.device.answer(id, &[&self.out]);
            }
            Err(error) => self.device.refuse(id, error),
        }
    }

    fn read(&self, id: u64, ino: u64, offset: u64, len: u32) {
        let waiting = Waiting { device: Arc::clone(&self.device), ino };
        if let Err(waiting) = self.session.parked.park(id, waiting) {
            return waiting.device.refuse(id, Errno::INTR);
        }
        let reply = ReadReply::new(Arc::clone(&self.session.parked), id, len);
        self.session.tell("read", |files| files.read(ino, offset, len, reply));
    }

    fn interrupt(&self, id: u64) {
        if let Some(waiting) = self.session.parked.interrupt(id) {
            waiting.device.refuse(id, Errno::INTR);
            self.session.tell("abandon", |files| files.abandon(waiting.ino, id));
        }
    }

    fn read_directory(&mut self, id: u64, ino: u64, offset: u64, len: usize, with_entries: bool) {
        let Self { session, out, handed_out, device } = self;
        let mut entries = DirectoryReply::new(out, handed_out, len, with_entries);
        let listed =
            session.call("read_directory", |files| files.read_directory(ino, offset, &mut entries));
        let answered = match listed {
            Ok(()) => device.answer(id, &[out]),
            Err(error) => {
                device.refuse(id, error);
                Err(error)
            }
        };
        if answered.is_err() {
            // A closure that panicked has handed nothing out.
            handed_out.iter().for_each(|ino| session.tell("forget", |files| files.forget(*ino, 1)));
        }
    }

    fn forget(&self, ino: u64, lookups: u64) {
        self.session.tell("forget", |files| files.forget(ino, lookups));
    }

    fn attributes(&mut self, ino: u64) -> Answer<()> {
        let told = self.session.call("attributes", |files| files.attributes(ino))?;
        encode::attributes_reply(&mut self.out, &told);
        Ok(())
    }

    fn read_link(&mut self, ino: u64) -> Answer<()> {
        self.out = self.session.call("read_link", |files| files.read_link(ino))?;
        Ok(())
    }

    /// Says that nothing needs to be opened, or opens what needs no handle.
    fn open(&mut self, without: u32, flags: u32) -> Answer<()> {
        if self.session.features & without != 0 {
            return Err(Errno::NOSYS);
        }
        encode::opened(&mut self.out, flags);
        Ok(())
    }

    fn xattr(&mut self, ino: u64, name: &[u8], len_max: u32) -> Answer<()> {
        let value = self.session.call("xattr", |files| files.xattr(ino, name))?;
        self.xattr_reply(value, len_max)
    }

    fn xattr_names(&mut self, ino: u64, len_max: u32) -> Answer<()> {
        let names = self.session.call("xattr_names", |files| files.xattr_names(ino))?;
        let ended = names.into_iter().flat_map(|name| name.into_iter().chain([0]));
        self.xattr_reply(ended.collect(), len_max)
    }

    fn xattr_reply(&mut self, bytes: Vec<u8>, len_max: u32) -> Answer<()> {
        if bytes.len() > abi::XATTR_LEN_MAX {
            return Err(Errno::TOOBIG);
        }
        if len_max == 0 {
            encode::xattr_len(&mut self.out, bytes.len());
        } else if bytes.len() > len_max as usize {
            return Err(Errno::RANGE);
        } else {
            self.out = bytes;
        }
        Ok(())
    }

    fn space(&mut self) -> Answer<()> {
        let space = self.session.call("space", |files| Ok(files.space()))?;
        encode::space(&mut self.out, &space);
        Ok(())
    }

    fn seek(&mut self, ino: u64, offset: u64, whence: Option<Seek>) -> Answer<()> {
        let whence = whence.ok_or(Errno::INVAL)?;
        let place = self.session.call("seek", |files| files.seek(ino, offset, whence))?;
        self.out.extend_from_slice(&place.to_ne_bytes());
        Ok(())
    }
}
