//! An authenticated connection transfers bytes in order, both ways, and detects any modification.

use crate::pair;
use crate::pair::{JOB, NOW, linked, pass, send};
use mesh_tls::record::{PLAIN_LEN_MAX, RECORD_LEN_MAX};
use mesh_trust::secure_stream::PENDING_LEN_MAX;
use mesh_trust::trust::server_name;
use mesh_trust::{Role, SecureStream, TlsError};
use rustls::ClientConnection;
use std::io::{IoSlice, Read, Write};
use std::sync::Arc;

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * index / 7) as u8).collect()
}

#[test]
fn bytes_of_any_length_arrive_in_both_directions() {
    let (mut worker, mut controller) = linked();
    for len in [1, 200, PLAIN_LEN_MAX - 1, PLAIN_LEN_MAX, PLAIN_LEN_MAX + 1, 1_000_000] {
        let bytes = noise(len);
        assert!(send(&mut worker, &mut controller, &[&bytes]) == bytes, "{len} bytes down");
        assert!(send(&mut controller, &mut worker, &[&bytes]) == bytes, "{len} bytes up");
    }
}

#[test]
fn any_number_of_slices_share_a_record() {
    let (mut worker, mut controller) = linked();
    let pieces: Vec<_> = (0..40).map(noise).collect();
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let len = pieces.iter().map(Vec::len).sum();
    assert_eq!(worker.sealer.write(&slices), Ok(len));
    assert_eq!(worker.sealer.pending().len(), len + 22);
    assert_eq!(pass(&mut worker, &mut controller), Ok(pieces.concat()));
}

#[test]
fn bytes_pending_for_the_socket_are_bounded() {
    let (mut worker, mut controller) = linked();
    let bytes = noise(10 * PENDING_LEN_MAX);
    let taken = worker.sealer.write(&[IoSlice::new(&bytes)]).expect("the link is open");
    assert_eq!(taken, 4 * PLAIN_LEN_MAX);
    assert_eq!(worker.sealer.write(&[IoSlice::new(&bytes[taken..])]), Ok(0));
    assert_eq!(worker.sealer.pending().len(), PENDING_LEN_MAX);
    worker.sealer.close().expect("there is always space for the end");
    assert_eq!(pass(&mut worker, &mut controller), Ok(bytes[..taken].to_vec()));
    assert!(controller.opener.is_closed());
}

#[test]
fn a_record_can_be_received_byte_by_byte() {
    let (mut worker, mut controller) = linked();
    let bytes = noise(300);
    assert_eq!(worker.sealer.write(&[IoSlice::new(&bytes)]), Ok(300));
    let mut came: Vec<u8> = Vec::new();
    for byte in worker.sealer.pending().to_vec() {
        controller.opener.spare()[0] = byte;
        controller.opener.filled(1);
        came.extend(controller.opener.open().expect("the link is whole").unwrap_or_default());
    }
    assert_eq!(came, bytes);
}

#[test]
fn a_receive_buffer_grows_when_a_read_has_filled_it() {
    let (mut worker, mut controller) = linked();
    assert_eq!(controller.opener.spare().len(), RECORD_LEN_MAX);
    assert_eq!(send(&mut worker, &mut controller, &[b"little"]), b"little");
    assert_eq!(controller.opener.spare().len(), RECORD_LEN_MAX);
    let bytes = noise(2 * PLAIN_LEN_MAX);
    assert!(send(&mut worker, &mut controller, &[&bytes]) == bytes);
    assert_eq!(controller.opener.spare().len(), 4 * RECORD_LEN_MAX);
}

#[test]
fn a_tampered_record_is_refused() {
    for place in [5, 40, 104, 120] {
        let (mut worker, mut controller) = linked();
        assert_eq!(worker.sealer.write(&[IoSlice::new(&noise(100))]), Ok(100));
        let mut sealed = worker.sealer.pending().to_vec();
        sealed[place] ^= 1;
        assert_eq!(open(&mut controller, &sealed), Err(TlsError::Tampered));
    }
}

fn open(to: &mut SecureStream, sealed: &[u8]) -> Result<Vec<u8>, TlsError> {
    to.opener.spare()[..sealed.len()].copy_from_slice(sealed);
    to.opener.filled(sealed.len());
    Ok(to.opener.open()?.unwrap_or_default().to_vec())
}

#[test]
fn a_replayed_record_is_refused() {
    let (mut worker, mut controller) = linked();
    assert_eq!(worker.sealer.write(&[IoSlice::new(b"pay once")]), Ok(8));
    let sealed = worker.sealer.pending().to_vec();
    assert_eq!(open(&mut controller, &sealed), Ok(b"pay once".to_vec()));
    assert_eq!(open(&mut controller, &sealed), Err(TlsError::Tampered));
}

#[test]
fn a_record_of_another_connection_is_refused() {
    let (mut worker, _) = linked();
    let (_, mut other) = linked();
    assert_eq!(worker.sealer.write(&[IoSlice::new(b"for one link")]), Ok(12));
    let sealed = worker.sealer.pending().to_vec();
    assert_eq!(open(&mut other, &sealed), Err(TlsError::Tampered));
}

#[test]
fn a_missing_record_is_detected() {
    let (mut worker, mut controller) = linked();
    assert_eq!(worker.sealer.write(&[IoSlice::new(b"lost")]), Ok(4));
    let lost_len = worker.sealer.pending().len();
    worker.sealer.sent(lost_len);
    assert_eq!(worker.sealer.write(&[IoSlice::new(b"next")]), Ok(4));
    let sealed = worker.sealer.pending().to_vec();
    assert_eq!(open(&mut controller, &sealed), Err(TlsError::Tampered));
}

#[test]
fn an_unsealed_record_is_refused() {
    for forged in [
        &[21, 3, 3, 0, 2, 1, 0][..], // an alert without encryption, which anyone could send
        &[20, 3, 3, 0, 1, 1],        // a change of ciphers, long after the handshake
        &[23, 3, 3, 0, 5, 1, 2, 3, 4, 5], // too short to be encrypted
        &[23, 3, 3, 0xff, 0xff],     // longer than the maximum length of a record
        &[22, 3, 3, 0, 5, 24, 0, 0, 1, 0], // a key update
    ] {
        let (_, mut controller) = linked();
        assert_eq!(open(&mut controller, forged), Err(TlsError::NotSealed));
    }
}

#[test]
fn a_cut_connection_is_not_reported_as_closed() {
    let (mut worker, mut controller) = linked();
    assert_eq!(send(&mut worker, &mut controller, &[b"all there is"]), b"all there is");
    assert!(!controller.opener.is_closed());
    worker.sealer.close().expect("there is space");
    assert_eq!(pass(&mut worker, &mut controller), Ok(vec![]));
    assert!(controller.opener.is_closed());
    assert_eq!(worker.sealer.write(&[IoSlice::new(b"more")]), Err(TlsError::Closed));
}

#[test]
fn a_connection_continues_after_a_key_update() {
    let (mut worker, mut controller) = linked();
    for round in 0..5 {
        worker.sealer.update_key().expect("there is a next key");
        let bytes = noise(1000 + round);
        assert_eq!(send(&mut worker, &mut controller, &[&bytes]), bytes);
        assert_eq!(send(&mut controller, &mut worker, &[&bytes]), bytes);
    }
}

#[test]
fn key_updates_of_a_peer_that_does_not_read_use_bounded_memory() {
    let (mut worker, mut client) = linked_with_rustls();
    let bytes = noise(PENDING_LEN_MAX);
    worker.sealer.write(&[IoSlice::new(&bytes)]).expect("the link is open");
    for _ in 0..50 {
        client.refresh_traffic_keys().expect("it is done with the handshake");
        let wish = written(&mut client);
        assert_eq!(open(&mut worker, &wish), Ok(vec![]));
        worker.sealer.write(&[IoSlice::new(b"more")]).expect("the link is open");
    }
    assert!(worker.sealer.pending().len() <= PENDING_LEN_MAX + 100);
    let mut came = Vec::new();
    for piece in worker.sealer.pending().chunks(PLAIN_LEN_MAX) {
        read_into(&mut client, piece);
        let mut some = vec![0; 2 * PLAIN_LEN_MAX];
        let len = client.reader().read(&mut some).unwrap_or(0);
        came.extend_from_slice(&some[..len]);
    }
    assert!(came.len() > 3 * PLAIN_LEN_MAX && bytes.starts_with(&came), "the keys are right");
}

/// A worker with the record layer of this crate, and a client with the record layer of rustls.
fn linked_with_rustls() -> (SecureStream, ClientConnection) {
    let authority = pair::authority(JOB);
    let trust = pair::trust_at(&pair::identity(&authority, Role::Worker), &Role::ALL, NOW);
    let config = Arc::new(trust.client_config().expect("a configuration"));
    let mut client = ClientConnection::new(config, server_name()).expect("a client");
    let mut server = trust.accept();
    while !server.is_done() {
        server.feed(&written(&mut client)).expect("the client is a member");
        let bytes = server.pending().to_vec();
        server.sent(bytes.len());
        read_into(&mut client, &bytes);
    }
    (server.finish().expect("it is done"), client)
}

fn written(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).expect("memory takes all");
    }
    bytes
}

fn read_into(client: &mut ClientConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).expect("memory gives all");
        client.process_new_packets().expect("the server keeps the rules");
    }
}

#[test]
fn the_records_are_compatible_with_rustls() {
    let (mut worker, mut client) = linked_with_rustls();
    for round in 0..4 {
        let bytes = noise(3000 * (round + 1));
        assert_eq!(worker.sealer.write(&[IoSlice::new(&bytes)]), Ok(bytes.len()));
        read_into(&mut client, worker.sealer.pending());
        worker.sealer.sent(worker.sealer.pending().len());
        let mut came = vec![0; bytes.len()];
        client.reader().read_exact(&mut came).expect("it came whole");
        assert!(came == bytes, "down, round {round}");

        client.writer().write_all(&bytes).expect("there is space");
        let mut came = Vec::new();
        for piece in written(&mut client).chunks(5000) {
            worker.opener.spare()[..piece.len()].copy_from_slice(piece);
            worker.opener.filled(piece.len());
            while let Some(plain) = worker.opener.open().expect("rustls keeps the rules") {
                came.extend_from_slice(plain);
            }
        }
        assert!(came == bytes, "up, round {round}");
        // rustls replaces its key and requests a new one from us; we replace ours, too.
        client.refresh_traffic_keys().expect("it is done with the handshake");
        worker.sealer.update_key().expect("there is a next key");
    }
    worker.sealer.close().expect("there is space");
    read_into(&mut client, worker.sealer.pending());
    assert_eq!(client.reader().read(&mut [0]).expect("a clean end"), 0);
}

#[test]
fn the_first_bytes_may_arrive_with_the_end_of_the_handshake() {
    let authority = pair::authority(JOB);
    let (worker, controller) =
        (pair::identity(&authority, Role::Worker), pair::identity(&authority, Role::Controller));
    let (mut server, mut client) = pair::both(&worker, &controller);
    server.feed(client.pending()).expect("a hello");
    client.sent(client.pending().len());
    client.feed(server.pending()).expect("an answer");
    server.sent(server.pending().len());
    let mut client = client.finish().expect("the client is done");
    let bytes = noise(20_000);
    assert_eq!(client.sealer.write(&[IoSlice::new(&bytes)]), Ok(bytes.len()));
    server.feed(client.sealer.pending()).expect("a proof, and more");
    let mut server = server.finish().expect("the server is done");
    let mut came = Vec::new();
    while let Some(plain) = server.opener.open().expect("the link is whole") {
        came.extend_from_slice(plain);
    }
    assert_eq!(came, bytes);
}
