//! An in-memory file system for tests.

use crate::mounted_files::LIMIT;
use mesh_fuse::{
    Attributes, DirectoryReply, Entry, Errno, FileSystem, FsResult, Kind, ROOT, ReadReply, Seek,
    Space,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, PoisonError};

/// Content of a file.
#[derive(Clone)]
pub(crate) enum Content {
    Directory(BTreeMap<Vec<u8>, u64>),
    File(Vec<u8>),
    /// A file of this length whose reads are suspended.
    SuspendedRead(u64),
    /// A file whose reads fail with this error.
    Broken(Errno),
    /// A file whose reads panic.
    Panicking,
    /// A file whose read replies are dropped.
    Dropped,
    Link(Vec<u8>),
    Special(Kind, u64),
}

struct Node {
    content: Content,
    permissions: u16,
    modified_s: i64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

/// A suspended read.
pub(crate) struct SuspendedRead {
    pub(crate) ino: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) reply: ReadReply,
}

/// An in-memory file system.
pub(crate) struct MemoryFileSystem {
    nodes: Mutex<HashMap<u64, Node>>,
    forgotten: Condvar,
    calls: Mutex<HashMap<&'static str, usize>>,
    suspended: Sender<SuspendedRead>,
    abandoned: Sender<u64>,
}

/// Events that the file system reports to the test.
pub(crate) struct Events {
    suspended: Mutex<Receiver<SuspendedRead>>,
    abandoned: Mutex<Receiver<u64>>,
}

impl Events {
    /// Returns the next suspended read.
    pub(crate) fn next_suspended(&self) -> SuspendedRead {
        lock(&self.suspended).recv_timeout(LIMIT).expect("something is read")
    }

    /// Returns the id of the next cancelled read.
    pub(crate) fn next_abandoned(&self) -> u64 {
        lock(&self.abandoned).recv_timeout(LIMIT).expect("something is abandoned")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryFileSystem {
    pub(crate) fn new() -> (Self, Events) {
        let ((suspended, suspended_events), (abandoned, abandoned_events)) = (channel(), channel());
        let memory = Self {
            nodes: Mutex::default(),
            forgotten: Condvar::new(),
            calls: Mutex::default(),
            suspended,
            abandoned,
        };
        let root = memory.insert(Content::Directory(BTreeMap::new()));
        assert_eq!(root, ROOT);
        (
            memory,
            Events {
                suspended: Mutex::new(suspended_events),
                abandoned: Mutex::new(abandoned_events),
            },
        )
    }

    fn insert(&self, content: Content) -> u64 {
        let mut nodes = lock(&self.nodes);
        let ino = nodes.len() as u64 + 1;
        let permissions = if matches!(content, Content::Directory(_)) { 0o755 } else { 0o644 };
        let (modified_s, xattrs) = (1_700_000_000, BTreeMap::new());
        nodes.insert(ino, Node { content, permissions, modified_s, xattrs, lookups: 0 });
        ino
    }

    fn names<T>(&self, directory: u64, change: impl FnOnce(&mut BTreeMap<Vec<u8>, u64>) -> T) -> T {
        let mut nodes = lock(&self.nodes);
        match nodes.get_mut(&directory).map(|node| &mut node.content) {
            Some(Content::Directory(names)) => change(names),
            _ => panic!("{directory} is no directory"),
        }
    }

    /// Adds a name; returns the inode number of the file.
    pub(crate) fn add(&self, directory: u64, name: &str, content: Content) -> u64 {
        let ino = self.insert(content);
        self.names(directory, |names| names.insert(name.into(), ino));
        ino
    }

    pub(crate) fn add_file(&self, directory: u64, name: &str, bytes: &[u8]) -> u64 {
        self.add(directory, name, Content::File(bytes.to_vec()))
    }

    pub(crate) fn add_directory(&self, directory: u64, name: &str) -> u64 {
        self.add(directory, name, Content::Directory(BTreeMap::new()))
    }

    pub(crate) fn remove(&self, directory: u64, name: &str) {
        self.names(directory, |names| names.remove(name.as_bytes()));
    }

    pub(crate) fn set(&self, ino: u64, content: Content) {
        lock(&self.nodes).get_mut(&ino).expect("it was added").content = content;
    }

    pub(crate) fn set_xattr(&self, ino: u64, name: &str, value: &[u8]) {
        let mut nodes = lock(&self.nodes);
        let node = nodes.get_mut(&ino).expect("it was added");
        node.xattrs.insert(name.into(), value.to_vec());
    }

    pub(crate) fn set_permissions(&self, ino: u64, permissions: u16) {
        lock(&self.nodes).get_mut(&ino).expect("it was added").permissions = permissions;
    }

    /// Returns the number of calls of each method.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.calls).iter().map(|(call, count)| (*call, *count)).collect()
    }

    pub(crate) fn lookups(&self, ino: u64) -> u64 {
        lock(&self.nodes)[&ino].lookups
    }

    /// Waits until the kernel has forgotten a file.
    pub(crate) fn wait_forgotten(&self, ino: u64) {
        let nodes = lock(&self.nodes);
        let is_known = |nodes: &mut HashMap<u64, Node>| nodes[&ino].lookups > 0;
        let waited = self.forgotten.wait_timeout_while(nodes, LIMIT, is_known);
        assert!(!waited.expect("nobody panics with it").1.timed_out(), "{ino} is not forgotten");
    }

    fn count(&self, call: &'static str) {
        *lock(&self.calls).entry(call).or_default() += 1;
    }

    fn with_node<T>(
        &self,
        ino: u64,
        with_node: impl FnOnce(&mut Node) -> FsResult<T>,
    ) -> FsResult<T> {
        with_node(lock(&self.nodes).get_mut(&ino).ok_or(Errno::STALE)?)
    }

    fn entry(&self, ino: u64) -> FsResult<Entry> {
        self.with_node(ino, |node| {
            node.lookups += 1;
            Ok(Entry { ino, attributes: attributes(ino, node) })
        })
    }
}

fn kind(content: &Content) -> Kind {
    match content {
        Content::Directory(_) => Kind::Directory,
        Content::Link(_) => Kind::Symlink,
        Content::Special(kind, _) => *kind,
        _ => Kind::File,
    }
}

fn attributes(ino: u64, node: &Node) -> Attributes {
    let size = match &node.content {
        Content::File(bytes) => bytes.len() as u64,
        Content::Link(target) => target.len() as u64,
        Content::SuspendedRead(len) => *len,
        Content::Broken(_) | Content::Panicking | Content::Dropped => 4096,
        Content::Directory(_) | Content::Special(..) => 0,
    };
    let device = if let Content::Special(_, device) = node.content { device } else { 0 };
    Attributes {
        ino,
        kind: kind(&node.content),
        permissions: node.permissions,
        links: if matches!(node.content, Content::Directory(_)) { 2 } else { 1 },
        uid: 1234,
        gid: 5678,
        device,
        size,
        blocks: size.div_ceil(512),
        modified_s: node.modified_s,
        modified_ns: 123_456_789,
    }
}

impl FileSystem for MemoryFileSystem {
    fn lookup(&self, parent: u64, name: &[u8]) -> FsResult<Entry> {
        self.count("lookup");
        assert!(name != b"panic", "this name panics");
        let ino = self.with_node(parent, |node| match &node.content {
            Content::Directory(names) => names.get(name).copied().ok_or(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        })?;
        self.entry(ino)
    }

    fn forget(&self, ino: u64, lookups: u64) {
        let _ = self.with_node(ino, |node| {
            assert!(node.lookups >= lookups, "more is forgotten than was looked up");
            node.lookups -= lookups;
            Ok(())
        });
        self.forgotten.notify_all();
    }

    fn attributes(&self, ino: u64) -> FsResult<Attributes> {
        self.count("attributes");
        self.with_node(ino, |node| Ok(attributes(ino, node)))
    }

    fn read_link(&self, ino: u64) -> FsResult<Vec<u8>> {
        self.count("read_link");
        self.with_node(ino, |node| match &node.content {
            Content::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        })
    }

    fn read(&self, ino: u64, offset: u64, len: u32, reply: ReadReply) {
        self.count("read");
        let content = self.with_node(ino, |node| {
            Ok(match &node.content {
                Content::File(bytes) => {
                    let start = bytes.len().min(offset as usize);
                    let end = bytes.len().min(start + len as usize);
                    Content::File(bytes[start..end].to_vec())
                }
                other => other.clone(),
            })
        });
        match content {
            // Test a reply with several slices as well.
            Ok(Content::File(bytes)) if bytes.len() > 100_000 => {
                reply.slices(&bytes.chunks(64).collect::<Vec<_>>());
            }
            Ok(Content::File(bytes)) => reply.bytes(&bytes),
            Ok(Content::SuspendedRead(_)) => {
                drop(self.suspended.send(SuspendedRead { ino, offset, len, reply }))
            }
            Ok(Content::Panicking) => panic!("this file panics"),
            Ok(Content::Broken(error)) | Err(error) => reply.error(error),
            Ok(_) => drop(reply),
        }
    }

    fn abandon(&self, _ino: u64, read: u64) {
        let _ = self.abandoned.send(read);
    }

    fn read_directory(&self, ino: u64, offset: u64, entries: &mut DirectoryReply) -> FsResult<()> {
        self.count("read_directory");
        // The offset of a name is its index; `.` and `..` come first.
        let mut listed = vec![(b".".to_vec(), ino), (b"..".to_vec(), ROOT)];
        listed.extend(self.with_node(ino, |node| match &node.content {
            Content::Directory(names) => {
                let all = names.range::<[u8], _>((Bound::Unbounded::<&[u8]>, Bound::Unbounded));
                Ok(all.map(|(name, ino)| (name.clone(), *ino)).collect::<Vec<_>>())
            }
            _ => Err(Errno::NOTDIR),
        })?);
        for (at, (name, ino)) in listed.iter().enumerate().skip(offset as usize) {
            let kind = self.with_node(*ino, |node| Ok(kind(&node.content)))?;
            let entry = || self.entry(*ino).expect("it was there");
            if !entries.add(name, at as u64 + 1, *ino, kind, entry) {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, ino: u64, name: &[u8]) -> FsResult<Vec<u8>> {
        self.with_node(ino, |node| node.xattrs.get(name).cloned().ok_or(Errno::NODATA))
    }

    fn xattr_names(&self, ino: u64) -> FsResult<Vec<Vec<u8>>> {
        self.with_node(ino, |node| Ok(node.xattrs.keys().cloned().collect()))
    }

    fn seek(&self, ino: u64, offset: u64, whence: Seek) -> FsResult<u64> {
        // The first 4096 bytes of each file count as data, the rest as a hole.
        let len = self.attributes(ino)?.size;
        let data = len.min(4096);
        match whence {
            Seek::Data if offset < data => Ok(offset),
            Seek::Hole if offset < data => Ok(data),
            Seek::Hole if offset < len => Ok(offset),
            _ => Err(Errno::NXIO),
        }
    }

    fn space(&self) -> Space {
        Space { blocks: 1000, blocks_free: 10, files: 500, files_free: 5, ..Space::default() }
    }
}
