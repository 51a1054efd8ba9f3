//! Measures how fast one thread writes and reads chunks: `throughput FOLDER [CHUNK_BYTES]`.
//!
//! It also prints rates per processor time, which other load on the machine affects less.

use mesh_chunks::{ChunkId, Store, StoreOptions};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

const TOTAL_BYTES: usize = 1 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("name a folder")?).join("throughput");
    let length = arguments.next().map_or(Ok(32 << 10), |length| length.parse())?;
    let count = TOTAL_BYTES / length;
    let mut bytes = vec![0; TOTAL_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    let chunks: Vec<_> =
        bytes.chunks_exact(length).map(|bytes| (ChunkId::of(bytes), bytes)).collect();
    let told = |what: &str, count: usize, (begun, cpu): (Instant, f64)| {
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), processor_seconds() - cpu);
        let gibibytes = (count * length) as f64 / f64::from(1 << 30);
        let micros = cpu * 1e6 / count as f64;
        let (rate, cpu_rate) = (gibibytes / seconds, gibibytes / cpu);
        println!("{what}: {rate:.2} GiB/s; processor {cpu_rate:.2} GiB/s, {micros:.2} us a chunk");
    };

    let begun = (Instant::now(), processor_seconds());
    assert!(
        bytes.chunks_exact(length).zip(&chunks).all(|(bytes, (id, _))| ChunkId::of(bytes) == *id)
    );
    told("hash alone", count, begun);

    let (singly, batched) = chunks.split_at(count / 2);
    let store = Store::open(&folder, StoreOptions::default())?;
    let begun = (Instant::now(), processor_seconds());
    for (id, bytes) in singly {
        store.put(*id, bytes)?;
    }
    told("put", singly.len(), begun);
    let begun = (Instant::now(), processor_seconds());
    for batch in batched.chunks(64) {
        store.put_verified(batch)?;
    }
    told("put_verified in batches of 64", batched.len(), begun);

    let begun = (Instant::now(), processor_seconds());
    let store = Store::open(&folder, StoreOptions::default())?;
    told("open", count, begun);
    let mut into = vec![0; length];
    for round in ["read, first", "read, again"] {
        let begun = (Instant::now(), processor_seconds());
        for (id, _) in &chunks {
            assert!(store.read(id, 0, &mut into)?);
        }
        told(round, count, begun);
    }
    let begun = (Instant::now(), processor_seconds());
    for (id, _) in &chunks {
        assert!(store.get(id)?.is_some());
    }
    told("get", count, begun);
    let begun = (Instant::now(), processor_seconds());
    for (id, _) in &chunks {
        assert!(store.read(id, 0, &mut into[..length / 8])?);
    }
    told("read of an eighth", count, begun);
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
