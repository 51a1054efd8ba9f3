//! Prints the cost of encryption and decryption on one core, compared with copying alone.
//!
//! `cargo run --release --package mesh-trust --example throughput`

use mesh_trust::trust::server_name;
use mesh_trust::{Authority, Handshake, Identity, Role, SecureStream, Trust, TrustError};
use mesh_wire::id::JobId;
use rustix::time::{ClockId, clock_gettime};
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::UnixTime;
use std::hint::black_box;
use std::io::{IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: u32 = 5;
const BULK_LEN: usize = 64 << 20;
const CHUNK_LEN: usize = 64 << 10;
const SMALL: u32 = 400_000;
const HEAD: [u8; 64] = [1; 64];
const TAIL: [u8; 136] = [2; 136];

fn main() -> Result<(), TrustError> {
    let authority = Authority::create(JobId([7; 16]), Duration::from_secs(3600), UnixTime::now())?;
    let worker = authority.issue(Role::Worker, "worker", UnixTime::now())?;
    let controller = authority.issue(Role::Controller, "controller", UnixTime::now())?;
    for _ in 0..ROUNDS {
        let (mut from, mut to) = linked(&worker, &controller)?;
        let (seal, open) = bulk(&mut from, &mut to)?;
        let (rustls_seal, rustls_open) = rustls_bulk(&worker, &controller)?;
        println!(
            "GB/s: copy {:.1}  seal {seal:.2} (rustls {rustls_seal:.2})  \
             open {open:.2} (rustls {rustls_open:.2})",
            copy()
        );
        let (one, batch) = (small(&mut from, &mut to, 1)?, small(&mut from, &mut to, 32)?);
        println!(
            "ns per 200 byte message, sealed, opened and copied out: alone {one:.0} \
             (rustls {:.0}), 32 in a record {batch:.0}; copied only {:.1}",
            rustls_small(&worker, &controller)?,
            small_copy(),
        );
        println!("us per handshake of both sides: {:.0}", handshakes(&worker, &controller)?);
    }
    Ok(())
}

fn linked(
    worker: &Identity,
    controller: &Identity,
) -> Result<(SecureStream, SecureStream), TrustError> {
    let mut server = Trust::new(worker, &Role::ALL)?.accept();
    let mut client = Trust::new(controller, &Role::ALL)?.connect()?;
    while !(server.is_done() && client.is_done()) {
        carry(&mut client, &mut server)?;
        carry(&mut server, &mut client)?;
    }
    Ok((server.finish()?, client.finish()?))
}

fn carry(from: &mut Handshake, to: &mut Handshake) -> Result<(), TrustError> {
    to.feed(from.pending())?;
    from.sent(from.pending().len());
    Ok(())
}

fn handshakes(worker: &Identity, controller: &Identity) -> Result<f64, TrustError> {
    let started = cpu_time();
    for _ in 0..200 {
        black_box(linked(worker, controller)?);
    }
    Ok(since(started).as_secs_f64() * 1e6 / 200.0)
}

/// Returns the throughput of encryption and decryption in GB/s.
fn bulk(from: &mut SecureStream, to: &mut SecureStream) -> Result<(f64, f64), TrustError> {
    let chunk = vec![3; CHUNK_LEN];
    let mut out = vec![0; CHUNK_LEN];
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..BULK_LEN / CHUNK_LEN {
        let started = cpu_time();
        assert_eq!(from.sealer.write(&[IoSlice::new(&chunk)])?, CHUNK_LEN);
        sealing += since(started);
        let mut len = 0;
        while !from.sealer.pending().is_empty() {
            // The copy of the socket, which costs the same with and without TLS.
            let pending = from.sealer.pending();
            let spare = to.opener.spare();
            let moved = pending.len().min(spare.len());
            spare[..moved].copy_from_slice(&pending[..moved]);
            to.opener.filled(moved);
            from.sealer.sent(moved);
            let started = cpu_time();
            while let Some(plain) = to.opener.open()? {
                out[len..len + plain.len()].copy_from_slice(plain);
                len += plain.len();
            }
            opening += since(started);
        }
        assert_eq!(len, CHUNK_LEN);
    }
    Ok((rate(sealing), rate(opening)))
}

/// Returns the same for the record layer of rustls.
fn rustls_bulk(worker: &Identity, controller: &Identity) -> Result<(f64, f64), TrustError> {
    let (mut from, mut to) = rustls_linked(worker, controller)?;
    let mut bytes = Vec::new();
    let (chunk, mut out) = (vec![3; CHUNK_LEN], vec![0; CHUNK_LEN]);
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..BULK_LEN / CHUNK_LEN {
        let started = cpu_time();
        from.writer().write_all(&chunk).expect("there is space");
        sealing += since(started);
        bytes.clear();
        while from.wants_write() {
            from.write_tls(&mut bytes).expect("memory takes all");
        }
        let started = cpu_time();
        rustls_read(&mut to, &bytes, &mut out);
        opening += since(started);
    }
    Ok((rate(sealing), rate(opening)))
}

/// Connects two sides that use the record layer of rustls.
fn rustls_linked(
    worker: &Identity,
    controller: &Identity,
) -> Result<(ClientConnection, ServerConnection), TrustError> {
    let server = Arc::new(Trust::new(worker, &Role::ALL)?.server_config()?);
    let client = Arc::new(Trust::new(controller, &Role::ALL)?.client_config()?);
    let mut to = ServerConnection::new(server).expect("the configuration is right");
    let mut from = ClientConnection::new(client, server_name()).expect("and so is this one");
    let mut bytes = Vec::new();
    while from.is_handshaking() || to.is_handshaking() {
        bytes.clear();
        while from.wants_write() {
            from.write_tls(&mut bytes).expect("memory takes all");
        }
        rustls_read(&mut to, &bytes, &mut []);
        bytes.clear();
        while to.wants_write() {
            to.write_tls(&mut bytes).expect("memory takes all");
        }
        from.read_tls(&mut bytes.as_slice()).expect("memory gives all");
        from.process_new_packets().expect("the server is a member");
    }
    Ok((from, to))
}

/// Returns ns per message of 200 bytes, each in a separate rustls record.
fn rustls_small(worker: &Identity, controller: &Identity) -> Result<f64, TrustError> {
    let (mut from, mut to) = rustls_linked(worker, controller)?;
    let (mut bytes, mut out) = (Vec::new(), [0; 200]);
    let started = cpu_time();
    for _ in 0..SMALL {
        let pieces = [IoSlice::new(&HEAD), IoSlice::new(&TAIL)];
        assert_eq!(from.writer().write_vectored(&pieces).expect("there is space"), 200);
        bytes.clear();
        from.write_tls(&mut bytes).expect("memory takes all");
        rustls_read(&mut to, &bytes, &mut out);
        black_box(&out);
    }
    Ok(since(started).as_nanos() as f64 / f64::from(SMALL))
}

fn rustls_read(to: &mut ServerConnection, mut bytes: &[u8], out: &mut [u8]) {
    let mut len = 0;
    while !bytes.is_empty() {
        to.read_tls(&mut bytes).expect("memory gives all");
        to.process_new_packets().expect("the client is a member");
        while len < out.len()
            && let Ok(more) = to.reader().read(&mut out[len..])
        {
            len += more;
        }
    }
}

/// Returns ns per message of 200 bytes, with `together` messages per write.
fn small(from: &mut SecureStream, to: &mut SecureStream, together: u32) -> Result<f64, TrustError> {
    let pieces: Vec<_> =
        (0..together).flat_map(|_| [IoSlice::new(&HEAD), IoSlice::new(&TAIL)]).collect();
    let mut out = vec![0; CHUNK_LEN];
    let started = cpu_time();
    for _ in 0..SMALL / together {
        from.sealer.write(&pieces)?;
        let pending = from.sealer.pending();
        let len = pending.len();
        to.opener.spare()[..len].copy_from_slice(pending);
        to.opener.filled(len);
        from.sealer.sent(len);
        while let Some(plain) = to.opener.open()? {
            out[..plain.len()].copy_from_slice(plain);
        }
        black_box(&out);
    }
    Ok(since(started).as_nanos() as f64 / f64::from(SMALL / together * together))
}

fn small_copy() -> f64 {
    let mut out = [0; 200];
    let started = cpu_time();
    for _ in 0..SMALL {
        out[..64].copy_from_slice(black_box(&HEAD));
        out[64..].copy_from_slice(black_box(&TAIL));
        black_box(&out);
    }
    since(started).as_nanos() as f64 / f64::from(SMALL)
}

fn copy() -> f64 {
    let (chunk, mut out) = (vec![3_u8; CHUNK_LEN], vec![0; CHUNK_LEN]);
    let started = cpu_time();
    for _ in 0..BULK_LEN / CHUNK_LEN {
        out.copy_from_slice(black_box(&chunk));
        black_box(&out);
    }
    rate(since(started))
}

/// The CPU time of this thread, which does not depend on other load of the machine.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it does not run backwards")
}

fn since(started: Duration) -> Duration {
    cpu_time() - started
}

fn rate(took: Duration) -> f64 {
    BULK_LEN as f64 / 1e9 / took.as_secs_f64()
}
