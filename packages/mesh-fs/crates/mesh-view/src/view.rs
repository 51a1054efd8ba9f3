//! The file system that shows a tree.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use mesh_chunks::{ChunkId, Store};
use mesh_fuse::{
    Attributes, DirectoryReply, Entry, FileSystem, FsResult, Kind, ReadReply, Seek, Space,
};
use mesh_snapshot::{Comparison, Extent, NodeId, Tree};
use rustix::io::Errno;

use crate::chunk_requests::ChunkRequests;
use crate::nodes::Nodes;
use crate::partial_chunks::PartialChunks;
use crate::read_timeout;
use crate::refresh::{Refresh, stale};
use crate::suspended_reads::{Request, SuspendedReads};

/// Maximum number of times a read is suspended. More are needed only if chunks are evicted before
/// they are read, because the store is too small for its readers.
const ROUNDS_MAX: u32 = 8;
/// The same as in `Space::default()`.
const NAME_LEN_MAX: usize = 255;
/// Block size of `Space::default()`.
const BLOCK_BYTES: u64 = 4096;
/// Unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// Options of a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewOptions {
    /// A read that has waited this long for its chunks fails with EIO.
    pub read_limit: Duration,
    /// Number of bytes to read ahead after a read that had to wait.
    pub read_ahead_bytes: u64,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self { read_limit: Duration::from_secs(60), read_ahead_bytes: 4 << 20 }
    }
}

/// A tree as a file system, whose chunks are in a store or still have to be fetched.
pub struct View {
    nodes: RwLock<Nodes>,
    store: Arc<Store>,
    options: ViewOptions,
    partial_chunks: PartialChunks,
    suspended_reads: Arc<SuspendedReads>,
    chunk_requests: ChunkRequests,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl View {
    /// Creates a view of a tree.
    ///
    /// # Errors
    ///
    /// An eventfd or a thread cannot be created.
    pub fn new(tree: Arc<Tree>, store: Arc<Store>, options: ViewOptions) -> std::io::Result<Self> {
        let suspended_reads = Arc::new(SuspendedReads::default());
        read_timeout::watch(&suspended_reads, options.read_limit)?;
        let nodes = RwLock::new(Nodes::new(tree));
        let partial_chunks = PartialChunks::default();
        Ok(Self {
            nodes,
            store,
            options,
            partial_chunks,
            suspended_reads,
            chunk_requests: ChunkRequests::new()?,
        })
    }

    /// Returns the current tree.
    pub fn tree(&self) -> Arc<Tree> {
        Arc::clone(self.nodes().tree())
    }

    /// Replaces the current tree, and returns the kernel caches to invalidate.
    ///
    /// Nodes that are the same in both trees keep their inode numbers, so the kernel keeps their
    /// cached data.
    pub fn show(&self, tree: Arc<Tree>) -> Refresh {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let old = Arc::clone(nodes.tree());
        let Comparison { changes, matches } = mesh_snapshot::compare(&old, &tree);
        let refresh = stale(&nodes, &changes);
        nodes.show(Arc::clone(&tree), &matches);
        refresh
    }

    /// File descriptor that is readable while chunks are wanted and not taken.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.chunk_requests.waker()
    }

    /// Takes up to `count_max` wanted chunks. The caller fetches them and calls `arrived` or
    /// `refuse`.
    pub fn take_requests(&self, count_max: usize) -> Vec<ChunkId> {
        self.chunk_requests.take(count_max)
    }

    /// Completes the reads that waited for these chunks, which are in the store now.
    pub fn arrived(&self, chunks: &[ChunkId]) {
        self.chunk_requests.complete(chunks);
        for request in self.suspended_reads.arrived(chunks) {
            self.serve(request);
        }
    }

    /// Fails the reads that wait for these chunks, which cannot be fetched.
    pub fn refuse(&self, chunks: &[ChunkId]) {
        self.chunk_requests.complete(chunks);
        for request in self.suspended_reads.refuse(chunks) {
            request.reply.error(Errno::IO);
        }
    }

    /// Fails all suspended reads, and later reads that would have to wait.
    pub fn end(&self) {
        self.suspended_reads.close();
    }

    /// Serves a read, or suspends it if chunks are missing.
    fn serve(&self, request: Request) {
        let Some((tree, node)) = self.find(request.number) else {
            return request.reply.error(Errno::STALE);
        };
        let size = tree.attributes(node).size;
        let end = request.offset.saturating_add(u64::from(request.len)).min(size);
        if request.offset >= end {
            return request.reply.bytes(&[]);
        }
        let missing = BUFFER.with_borrow_mut(|buffer| {
            buffer.resize((end - request.offset) as usize, 0);
            self.fill(&tree, node, request.offset, buffer)
        });
        match missing {
            Err(errno) => request.reply.error(errno),
            Ok(missing) if missing.is_empty() => {
                BUFFER.with_borrow(|buffer| request.reply.bytes(buffer));
            }
            Ok(_) if request.rounds == ROUNDS_MAX => request.reply.error(Errno::IO),
            Ok(missing) => self.suspend(request, missing, &tree, node, end),
        }
    }

    /// Reads from a file at an offset until the buffer is full. Returns the chunks that are
    /// missing.
    fn fill(
        &self,
        tree: &Tree,
        node: NodeId,
        offset: u64,
        buffer: &mut [u8],
    ) -> FsResult<Vec<ChunkId>> {
        let extents = tree.extents(node);
        let mut at = extents.partition_point(|extent| extent.end <= offset);
        let mut start = at.checked_sub(1).map_or(0, |before| extents[before].end);
        let mut missing = Vec::new();
        let mut filled = 0;
        while filled < buffer.len() {
            let Extent { end, chunk } = *extents.get(at).ok_or(Errno::IO)?;
            let skipped = (offset + filled as u64 - start) as usize;
            let count = ((end - start) as usize - skipped).min(buffer.len() - filled);
            let part = &mut buffer[filled..filled + count];
            match chunk {
                None => part.fill(0),
                Some(chunk)
                    if self.read_chunk(&chunk, (end - start) as usize, skipped, part)? => {}
                Some(chunk) => missing.push(chunk),
            }
            filled += count;
            start = end;
            at += 1;
        }
        Ok(missing)
    }

    /// Reads a part of a chunk, starting at byte `start`. Returns whether the store contains the
    /// chunk.
    fn read_chunk(
        &self,
        chunk: &ChunkId,
        len: usize,
        start: usize,
        part: &mut [u8],
    ) -> FsResult<bool> {
        if part.len() == len {
            return self.store.read(chunk, 0, part).map_err(|_| Errno::IO);
        }
        let known = self.partial_chunks.get(chunk);
        let bytes = match known {
            Some(bytes) => bytes,
            None => match self.store.get(chunk).map_err(|_| Errno::IO)? {
                Some(bytes) => {
                    let bytes: Arc<[u8]> = bytes.into();
                    self.partial_chunks.put(*chunk, Arc::clone(&bytes));
                    bytes
                }
                None => return Ok(false),
            },
        };
        part.copy_from_slice(bytes.get(start..start + part.len()).ok_or(Errno::IO)?);
        Ok(true)
    }

    fn suspend(
        &self,
        mut request: Request,
        mut missing: Vec<ChunkId>,
        tree: &Tree,
        node: NodeId,
        end: u64,
    ) {
        missing.sort_unstable();
        missing.dedup();
        let first = missing.clone();
        request.rounds += 1;
        self.suspended_reads.suspend(request, missing);
        self.chunk_requests.request(first.iter().copied());
        self.chunk_requests.request(self.behind(tree, node, end));
        // A chunk that arrived before the read was suspended has notified no one.
        let there: Vec<_> = first.into_iter().filter(|chunk| self.store.has(chunk)).collect();
        if !there.is_empty() {
            self.arrived(&there);
        }
    }

    /// Returns the missing chunks after the end of a read, within the read-ahead distance.
    fn behind<'a>(
        &'a self,
        tree: &'a Tree,
        node: NodeId,
        end: u64,
    ) -> impl Iterator<Item = ChunkId> + 'a {
        let extents = tree.extents(node);
        let until = end.saturating_add(self.options.read_ahead_bytes);
        let from = extents.partition_point(|extent| extent.end <= end);
        let to = extents.partition_point(|extent| extent.end <= until);
        extents[from..to]
            .iter()
            .filter_map(|extent| extent.chunk)
            .filter(|chunk| !self.store.has(chunk))
    }

    fn nodes(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, number: u64) -> Option<(Arc<Tree>, NodeId)> {
        self.nodes().find(number).map(|(tree, node)| (Arc::clone(tree), node))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.suspended_reads.close();
    }
}

impl FileSystem for View {
    fn lookup(&self, parent: u64, name: &[u8]) -> FsResult<Entry> {
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let nodes = self.nodes();
        let (tree, directory) = nodes.find(parent).ok_or(Errno::STALE)?;
        // A removed directory has no entries.
        if !Arc::ptr_eq(tree, nodes.tree()) {
            return Err(Errno::NOENT);
        }
        let node = tree.lookup(directory, name).ok_or(Errno::NOENT)?;
        let number = nodes.number(node);
        nodes.add_lookup(number);
        Ok(Entry { ino: number, attributes: attributes(tree, node, number) })
    }

    fn forget(&self, ino: u64, lookups: u64) {
        let is_needless = self.nodes().forget(ino, lookups);
        if is_needless {
            self.nodes.write().unwrap_or_else(PoisonError::into_inner).drop_gone(ino);
        }
    }

    fn attributes(&self, ino: u64) -> FsResult<Attributes> {
        let nodes = self.nodes();
        let (tree, node) = nodes.find(ino).ok_or(Errno::STALE)?;
        Ok(attributes(tree, node, ino))
    }

    fn read_link(&self, ino: u64) -> FsResult<Vec<u8>> {
        let nodes = self.nodes();
        let (tree, node) = nodes.find(ino).ok_or(Errno::STALE)?;
        Ok(tree.target(node).to_vec())
    }

    fn read(&self, ino: u64, offset: u64, len: u32, reply: ReadReply) {
        let since = Instant::now();
        self.serve(Request { number: ino, offset, len, reply, since, rounds: 0 });
    }

    fn abandon(&self, _ino: u64, read: u64) {
        self.suspended_reads.abandon(read);
    }

    fn read_directory(&self, ino: u64, offset: u64, entries: &mut DirectoryReply) -> FsResult<()> {
        let nodes = self.nodes();
        let (tree, directory) = nodes.find(ino).ok_or(Errno::STALE)?;
        let is_shown = Arc::ptr_eq(tree, nodes.tree());
        let parent = if is_shown { nodes.number(tree.parent(directory)) } else { ino };
        let named = [(&b"."[..], ino), (&b".."[..], parent)];
        let mut next = offset;
        while let Some(place) = usize::try_from(next).ok().filter(|place| *place < named.len()) {
            let (name, number) = named[place];
            next += 1;
            let own = || Entry { ino, attributes: attributes(tree, directory, ino) };
            if !entries.add(name, next, number, Kind::Directory, own) {
                return Ok(());
            }
        }
        // A removed directory is empty; a process may still use it as working directory.
        while is_shown && let Some((name, node)) = tree.child(directory, (next - 2) as usize) {
            let number = nodes.number(node);
            next += 1;
            let is_added = entries.add(name, next, number, kind(tree, node), || {
                nodes.add_lookup(number);
                Entry { ino: number, attributes: attributes(tree, node, number) }
            });
            if !is_added {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, ino: u64, name: &[u8]) -> FsResult<Vec<u8>> {
        let nodes = self.nodes();
        let (tree, node) = nodes.find(ino).ok_or(Errno::STALE)?;
        let found = tree.xattrs(node).find(|(given, _)| *given == name);
        found.map(|(_, value)| value.to_vec()).ok_or(Errno::NODATA)
    }

    fn xattr_names(&self, ino: u64) -> FsResult<Vec<Vec<u8>>> {
        let nodes = self.nodes();
        let (tree, node) = nodes.find(ino).ok_or(Errno::STALE)?;
        Ok(tree.xattrs(node).map(|(name, _)| name.to_vec()).collect())
    }

    fn seek(&self, ino: u64, offset: u64, whence: Seek) -> FsResult<u64> {
        let nodes = self.nodes();
        let (tree, node) = nodes.find(ino).ok_or(Errno::STALE)?;
        let size = tree.attributes(node).size;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let extents = tree.extents(node);
        let at = extents.partition_point(|extent| extent.end <= offset);
        let is_sought = |extent: &Extent| extent.chunk.is_some() == (whence == Seek::Data);
        match extents[at..].iter().position(is_sought) {
            Some(0) => Ok(offset),
            Some(after) => Ok(extents[at + after - 1].end),
            // Files have an implicit hole at their end.
            None if whence == Seek::Hole => Ok(size),
            None => Err(Errno::NXIO),
        }
    }

    fn space(&self) -> Space {
        let totals = self.nodes().tree().totals();
        Space {
            blocks: totals.bytes.div_ceil(BLOCK_BYTES),
            files: totals.entries,
            ..Space::default()
        }
    }
}

fn kind(tree: &Tree, node: NodeId) -> Kind {
    match tree.attributes(node).kind {
        mesh_snapshot::Kind::Directory => Kind::Directory,
        mesh_snapshot::Kind::File => Kind::File,
        mesh_snapshot::Kind::Symlink => Kind::Symlink,
        mesh_snapshot::Kind::Fifo => Kind::Fifo,
        mesh_snapshot::Kind::Socket => Kind::Socket,
        mesh_snapshot::Kind::CharDevice => Kind::CharDevice,
        mesh_snapshot::Kind::BlockDevice => Kind::BlockDevice,
    }
}

fn attributes(tree: &Tree, node: NodeId, number: u64) -> Attributes {
    let given = tree.attributes(node);
    Attributes {
        ino: number,
        kind: kind(tree, node),
        permissions: given.permissions,
        links: given.links,
        uid: given.uid,
        gid: given.gid,
        device: given.device,
        size: given.size,
        blocks: given.stored.div_ceil(SECTOR_BYTES),
        modified_s: given.modified_s,
        modified_ns: given.modified_ns,
    }
}
