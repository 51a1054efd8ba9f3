//! Measures reads of in-memory files through a mount: `cargo run --release --example throughput`.
//!
//! Each figure is the best of three new mounts, and is compared with the same work on a tmpfs.

use mesh_fuse::{
    Attributes, DirectoryReply, Entry, Errno, FileSystem, FsResult, Kind, Mount, MountError,
    MountOptions, ROOT, ReadReply, Seek, Space,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 3;
const BIG_LEN: u64 = 1 << 30;
const SMALL_LEN: u64 = 4096;
const SMALL_COUNT: u64 = 10_000;
/// Inode number of the large file; the inodes of the small files follow.
const BIG: u64 = 2;

/// One large file and many small ones, all with the same bytes.
struct Files {
    bytes: Vec<u8>,
}

impl Files {
    fn number(name: &[u8]) -> Option<u64> {
        if name == b"big" {
            return Some(BIG);
        }
        let number: u64 = std::str::from_utf8(name.strip_prefix(b"small-")?).ok()?.parse().ok()?;
        (number < SMALL_COUNT).then_some(BIG + 1 + number)
    }

    fn entry(ino: u64) -> Entry {
        let (kind, size, permissions) = match ino {
            ROOT => (Kind::Directory, 0, 0o755),
            BIG => (Kind::File, BIG_LEN, 0o644),
            _ => (Kind::File, SMALL_LEN, 0o644),
        };
        let attributes = Attributes {
            ino,
            kind,
            permissions,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size,
            blocks: size / 512,
            modified_s: 1_700_000_000,
            modified_ns: 0,
        };
        Entry { ino, attributes }
    }
}

impl FileSystem for Files {
    fn lookup(&self, _parent: u64, name: &[u8]) -> FsResult<Entry> {
        Self::number(name).map(Self::entry).ok_or(Errno::NOENT)
    }

    fn attributes(&self, ino: u64) -> FsResult<Attributes> {
        Ok(Self::entry(ino).attributes)
    }

    fn read_link(&self, _ino: u64) -> FsResult<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn read(&self, ino: u64, offset: u64, len: u32, reply: ReadReply) {
        let size = Self::entry(ino).attributes.size;
        let end = size.min(offset.saturating_add(u64::from(len)));
        reply.bytes(&self.bytes[offset.min(end) as usize..end as usize]);
    }

    fn read_directory(&self, _ino: u64, offset: u64, entries: &mut DirectoryReply) -> FsResult<()> {
        for number in offset..SMALL_COUNT {
            let (name, ino) = (format!("small-{number}"), BIG + 1 + number);
            if !entries.add(name.as_bytes(), number + 1, ino, Kind::File, || Self::entry(ino)) {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, _ino: u64, _name: &[u8]) -> FsResult<Vec<u8>> {
        Err(Errno::NODATA)
    }

    fn xattr_names(&self, _ino: u64) -> FsResult<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn seek(&self, _ino: u64, _offset: u64, _whence: Seek) -> FsResult<u64> {
        Err(Errno::NOSYS)
    }

    fn space(&self) -> Space {
        Space::default()
    }
}

/// A measurement: its name and its function.
type Work = (&'static str, fn(&Path) -> io::Result<()>);

const WORK: [Work; 6] = [
    ("1 GiB cold", read_big),
    ("1 GiB warm", read_big),
    ("10,000 x 4 KiB cold", read_small),
    ("10,000 x 4 KiB warm", read_small),
    ("list and stat cold", list),
    ("list and stat warm", list),
];

fn read_big(folder: &Path) -> io::Result<()> {
    let mut file = File::open(folder.join("big"))?;
    let mut buffer = vec![0; 1 << 20];
    let mut len = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            more => len += more as u64,
        }
        black_box(&buffer);
    }
    assert_eq!(len, BIG_LEN);
    Ok(())
}

fn read_small(folder: &Path) -> io::Result<()> {
    let mut buffer = vec![0; SMALL_LEN as usize];
    for number in 0..SMALL_COUNT {
        File::open(folder.join(format!("small-{number}")))?.read_exact(&mut buffer)?;
        black_box(&buffer);
    }
    Ok(())
}

fn list(folder: &Path) -> io::Result<()> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        black_box(entry?.metadata()?.len());
        count += 1;
    }
    assert!(count >= SMALL_COUNT);
    Ok(())
}

/// Runs measurements in a folder, and keeps the best times.
fn measure(best: &mut BTreeMap<&'static str, f64>, work: &[Work], folder: &Path) -> io::Result<()> {
    for (name, work) in work {
        let begun = Instant::now();
        work(folder)?;
        let took_s = begun.elapsed().as_secs_f64();
        let best = best.entry(*name).or_insert(took_s);
        *best = best.min(took_s);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let len = usize::try_from(BIG_LEN)?;
    let bytes = (0..len).map(|at| (at >> 7) as u8).collect();
    let files: Arc<dyn FileSystem> = Arc::new(Files { bytes });
    let (mut mounted, mut beside) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..ROUNDS {
        // Small files and the listing are each measured cold, so each needs a separate mount.
        for work in WORK.chunks(2) {
            let folder = tempfile::tempdir()?;
            let options = MountOptions::default();
            let mount = match Mount::open(folder.path(), &options, Arc::clone(&files)) {
                Ok(mount) => mount,
                Err(error @ MountError::System { .. }) => return Err(error.into()),
                Err(error) => {
                    println!("not measured: {error}");
                    return Ok(());
                }
            };
            measure(&mut mounted, work, folder.path())?;
            mount.close()?;
        }
    }
    let tmpfs = tempfile::tempdir_in("/dev/shm")?;
    let small = vec![7; usize::try_from(SMALL_LEN)?];
    for number in 0..SMALL_COUNT {
        fs::write(tmpfs.path().join(format!("small-{number}")), &small)?;
    }
    fs::write(tmpfs.path().join("big"), vec![7; len])?;
    (0..ROUNDS).try_for_each(|_| measure(&mut beside, &WORK, tmpfs.path()))?;
    for (name, _) in WORK {
        println!("{name:>20}: {:7.1} ms, tmpfs {:7.1} ms", mounted[name] * 1e3, beside[name] * 1e3);
    }
    Ok(())
}
