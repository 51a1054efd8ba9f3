//! Serving of a request.

use crate::abi::{self, feature};
use crate::decode::{Operation, Request, decode};
use crate::device::Device;
use crate::directory::DirectoryReply;
use crate::encode;
use crate::file_system::{FsResult, Seek};
use crate::reply::ReadReply;
use crate::session::Session;
use crate::suspended_reads::SuspendedRead;
use rustix::io::Errno;
use std::sync::Arc;

/// Serves the requests that one thread receives.
pub(crate) struct Server {
    session: Arc<Session>,
    device: Arc<Device>,
    /// Buffer for replies other than content of files; reused to avoid allocations.
    out: Vec<u8>,
    /// Inode numbers whose entries are in the current listing.
    handed_out: Vec<u64>,
}

impl Server {
    pub(crate) fn new(session: Arc<Session>, device: Arc<Device>) -> Self {
        Self { session, device, out: Vec::new(), handed_out: Vec::new() }
    }

    /// Serves a request.
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
            // A mount is initialized only once.
            Operation::Init(_) => Err(Errno::IO),
        };
        match answer {
            // Ignore errors: the kernel may not be waiting for the reply any more.
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
                // Ignore errors: the kernel may not be waiting for the reply any more.
                let _ = self.device.answer(id, &[&self.out]);
            }
            Err(error) => self.device.refuse(id, error),
        }
    }

    fn read(&self, id: u64, ino: u64, offset: u64, len: u32) {
        let read = SuspendedRead { device: Arc::clone(&self.device), ino };
        if let Err(read) = self.session.suspended_reads.suspend(id, read) {
            return read.device.refuse(id, Errno::INTR);
        }
        let reply = ReadReply::new(Arc::clone(&self.session.suspended_reads), id, len);
        self.session.call_infallible("read", |files| files.read(ino, offset, len, reply));
    }

    fn interrupt(&self, id: u64) {
        if let Some(read) = self.session.suspended_reads.interrupt(id) {
            read.device.refuse(id, Errno::INTR);
            self.session.call_infallible("abandon", |files| files.abandon(read.ino, id));
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
            // If the closure panicked, its entry is not in this list.
            handed_out
                .iter()
                .for_each(|ino| session.call_infallible("forget", |files| files.forget(*ino, 1)));
        }
    }

    fn forget(&self, ino: u64, lookups: u64) {
        self.session.call_infallible("forget", |files| files.forget(ino, lookups));
    }

    fn attributes(&mut self, ino: u64) -> FsResult<()> {
        let node = self.session.call("attributes", |files| files.attributes(ino))?;
        encode::attributes_reply(&mut self.out, &node);
        Ok(())
    }

    fn read_link(&mut self, ino: u64) -> FsResult<()> {
        self.out = self.session.call("read_link", |files| files.read_link(ino))?;
        Ok(())
    }

    /// Replies that no open is needed, or opens without a handle.
    fn open(&mut self, without: u32, flags: u32) -> FsResult<()> {
        if self.session.features & without != 0 {
            return Err(Errno::NOSYS);
        }
        encode::opened(&mut self.out, flags);
        Ok(())
    }

    fn xattr(&mut self, ino: u64, name: &[u8], len_max: u32) -> FsResult<()> {
        let value = self.session.call("xattr", |files| files.xattr(ino, name))?;
        self.xattr_reply(value, len_max)
    }

    fn xattr_names(&mut self, ino: u64, len_max: u32) -> FsResult<()> {
        let names = self.session.call("xattr_names", |files| files.xattr_names(ino))?;
        let terminated = names.into_iter().flat_map(|name| name.into_iter().chain([0]));
        self.xattr_reply(terminated.collect(), len_max)
    }

    fn xattr_reply(&mut self, bytes: Vec<u8>, len_max: u32) -> FsResult<()> {
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

    fn space(&mut self) -> FsResult<()> {
        let space = self.session.call("space", |files| Ok(files.space()))?;
        encode::space(&mut self.out, &space);
        Ok(())
    }

    fn seek(&mut self, ino: u64, offset: u64, whence: Option<Seek>) -> FsResult<()> {
        let whence = whence.ok_or(Errno::INVAL)?;
        let place = self.session.call("seek", |files| files.seek(ino, offset, whence))?;
        self.out.extend_from_slice(&place.to_ne_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::file_system::{Attributes, Entry, FileSystem, Kind, Space};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use std::os::fd::OwnedFd;

    /// A file system that succeeds for all requests.
    struct FakeFileSystem;

    fn entry(ino: u64) -> Entry {
        let attributes = Attributes {
            ino,
            kind: Kind::File,
            permissions: u16::MAX,
            links: 1,
            uid: 0,
            gid: 0,
            device: u64::MAX,
            size: u64::MAX,
            blocks: u64::MAX,
            modified_s: i64::MIN,
            modified_ns: u32::MAX,
        };
        Entry { ino, attributes }
    }

    impl FileSystem for FakeFileSystem {
        fn lookup(&self, parent: u64, name: &[u8]) -> FsResult<Entry> {
            assert!(!name.is_empty() && !name.contains(&0));
            if parent == 0 { Err(Errno::NOENT) } else { Ok(entry(parent)) }
        }

        fn attributes(&self, ino: u64) -> FsResult<Attributes> {
            Ok(entry(ino).attributes)
        }

        fn read_link(&self, _ino: u64) -> FsResult<Vec<u8>> {
            Ok(b"elsewhere".to_vec())
        }

        fn read(&self, ino: u64, _offset: u64, len: u32, reply: ReadReply) {
            match ino % 3 {
                0 => reply.bytes(b"some bytes"),
                1 => reply.slices(&[&b"x".repeat(len.min(100) as usize)[..]; 3]),
                _ => drop(reply),
            }
        }

        fn read_directory(
            &self,
            _ino: u64,
            offset: u64,
            entries: &mut DirectoryReply,
        ) -> FsResult<()> {
            for at in offset..offset.saturating_add(10) {
                let next = at.saturating_add(1);
                if !entries.add(b"name", next, next, Kind::File, || entry(next)) {
                    break;
                }
            }
            Ok(())
        }

        fn xattr(&self, ino: u64, _name: &[u8]) -> FsResult<Vec<u8>> {
            Ok(vec![0; if ino == 1 { 10 } else { abi::XATTR_LEN_MAX + 1 }])
        }

        fn xattr_names(&self, _ino: u64) -> FsResult<Vec<Vec<u8>>> {
            Ok(vec![b"user.colour".to_vec(); 3])
        }

        fn seek(&self, _ino: u64, offset: u64, _whence: Seek) -> FsResult<u64> {
            Ok(offset)
        }

        fn space(&self) -> Space {
            Space::default()
        }
    }

    /// Returns a server and the kernel's end of its device.
    fn server(features: u32) -> (Server, OwnedFd) {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
        let (device, kernel) =
            socketpair(AddressFamily::UNIX, kind, flags, None).expect("there are sockets");
        let session =
            Session::new(Arc::new(FakeFileSystem), None, features).expect("it can be woken");
        let device = Device::adopt(device).expect("it has flags");
        (Server::new(Arc::new(session), Arc::new(device)), kernel)
    }

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let len = (abi::REQUEST_HEADER_LEN + body.len()) as u32;
        bytes.extend_from_slice(&len.to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(&77_u64.to_ne_bytes());
        bytes.extend_from_slice(&1_u64.to_ne_bytes());
        bytes.resize(abi::REQUEST_HEADER_LEN, 0);
        bytes.extend_from_slice(body);
        bytes
    }

    /// Serves a request; returns the error and the bytes of each reply.
    fn serve(server: &mut Server, kernel: &OwnedFd, bytes: &[u8]) -> Vec<(i32, Vec<u8>)> {
        server.serve(bytes);
        let mut replies = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok((len, _)) = recv(kernel, &mut buffer[..], RecvFlags::empty()) {
            let reply = &buffer[..len];
            let (header, body) = reply.split_at(abi::REPLY_HEADER_LEN);
            assert_eq!(header[..4], (len as u32).to_ne_bytes());
            let error = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
            assert!(error <= 0 && error > -abi::ERRNO_END && (error == 0 || body.is_empty()));
            replies.push((error, body.to_vec()));
        }
        replies
    }

    /// Bodies that are valid for several requests.
    fn bodies() -> Vec<Vec<u8>> {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        vec![
            Vec::new(),
            b"name\0".to_vec(),
            b"name".to_vec(),
            b"\0".to_vec(),
            [&8_u64.to_ne_bytes(), b"user.colour\0".as_slice()].concat(),
            words(&[7 | 38 << 32, 0xffff_ffff_0000_0000, 0, 0]),
            words(&[0, 0, 4096, 0, 0]),
            words(&[0, u64::MAX, u64::from(u32::MAX), 3, 0]),
            words(&[2, 5, 1, 6, 1]),
            words(&[u64::from(u32::MAX), 5, 1]),
            words(&[u64::MAX; 8]),
        ]
    }

    fn is_without_reply(opcode: u32) -> bool {
        use opcode::{BATCH_FORGET, FORGET, INTERRUPT, NOTIFY_REPLY};
        [BATCH_FORGET, FORGET, INTERRUPT, NOTIFY_REPLY].contains(&opcode)
    }

    #[test]
    fn each_request_gets_exactly_one_reply() {
        let (mut server, kernel) = server(feature::WANTED);
        for opcode in (0..70).chain([4096, 1 << 20, 436_207_616, u32::MAX]) {
            for body in bodies() {
                let replies = serve(&mut server, &kernel, &request(opcode, &body));
                let expected = usize::from(!is_without_reply(opcode));
                assert_eq!(replies.len(), expected, "{opcode} {body:?}");
            }
        }
    }

    #[test]
    fn damaged_requests_get_at_most_one_reply() {
        let (mut server, kernel) = server(feature::WANTED);
        for opcode in 0..60 {
            for body in bodies() {
                let whole = request(opcode, &body);
                for at in 0..whole.len() {
                    let mut damaged = whole.clone();
                    for byte in [0, 0xff, damaged[at] ^ 1, damaged[at] ^ 0x80] {
                        damaged[at] = byte;
                        assert!(serve(&mut server, &kernel, &damaged).len() <= 1);
                    }
                    assert!(serve(&mut server, &kernel, &whole[..at]).len() <= 1);
                }
            }
        }
    }

    #[test]
    fn write_requests_are_refused_and_unknown_requests_are_unsupported() {
        let (mut server, kernel) = server(feature::WANTED);
        let mut error = |opcode| serve(&mut server, &kernel, &request(opcode, b"name\0"))[0].0;
        for opcode in [4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51] {
            assert_eq!(error(opcode), -Errno::ROFS.raw_os_error(), "{opcode}");
        }
        let flush_and_access_and_statx = [25, 34, 52];
        for opcode in [5000, 31, 39, 40].into_iter().chain(flush_and_access_and_statx) {
            assert_eq!(error(opcode), -Errno::NOSYS.raw_os_error(), "{opcode}");
        }
        assert_eq!(error(opcode::OPEN), -Errno::NOSYS.raw_os_error());
    }

    #[test]
    fn open_requests_succeed_for_kernels_that_require_them() {
        let (mut server, kernel) = server(0);
        let flags = |opened: &[(i32, Vec<u8>)]| (opened[0].0, opened[0].1.len(), opened[0].1[8]);
        let opened = serve(&mut server, &kernel, &request(opcode::OPEN, &[0; 8]));
        assert_eq!(flags(&opened), (0, 16, 2));
        let opened = serve(&mut server, &kernel, &request(opcode::OPENDIR, &[0; 8]));
        assert_eq!(flags(&opened), (0, 16, 10));
    }

    #[test]
    fn replies_have_the_lengths_of_the_protocol() {
        let (mut server, kernel) = server(feature::WANTED);
        let mut len = |opcode, body: &[u8]| {
            let replies = serve(&mut server, &kernel, &request(opcode, body));
            assert_eq!(replies[0].0, 0, "{opcode}");
            replies[0].1.len()
        };
        assert_eq!(len(opcode::LOOKUP, b"name\0"), 128);
        assert_eq!(len(opcode::GETATTR, &[0; 16]), 104);
        assert_eq!(len(opcode::STATFS, &[]), 80);
        assert_eq!(len(opcode::GETXATTR, b"\0\0\0\0\0\0\0\0name\0"), 8);
        assert_eq!(len(opcode::GETXATTR, b"\x0a\0\0\0\0\0\0\0name\0"), 10);
        assert_eq!(len(opcode::LISTXATTR, &[0; 8]), 8);
        let mut seek = [0; 24];
        seek[16] = 4;
        assert_eq!(len(opcode::LSEEK, &seek), 8);
        let mut range = [0; 40];
        range[16..18].copy_from_slice(&500_u16.to_ne_bytes());
        assert_eq!(len(opcode::READDIR, &range), 10 * 32);
        assert_eq!(len(opcode::READDIRPLUS, &range), 3 * 160);
        assert_eq!(len(opcode::READ, &range), 300);
        let mut init_reply = Vec::new();
        let offer = crate::decode::Offer { major: 7, minor: 45, features: u32::MAX };
        encode::init_reply(&mut init_reply, offer, 1 << 20, 256);
        assert_eq!(init_reply.len(), 64);
    }

    #[test]
    fn requests_to_a_stopped_session_fail() {
        let (mut server, kernel) = server(feature::WANTED);
        server.session.stop();
        let replies = serve(&mut server, &kernel, &request(opcode::LOOKUP, b"name\0"));
        assert_eq!(replies, [(-Errno::NOTCONN.raw_os_error(), Vec::new())]);
        assert!(serve(&mut server, &kernel, &request(opcode::FORGET, &[0; 8])).is_empty());
    }
}
