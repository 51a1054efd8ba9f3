//! Two sides of an in-memory connection, and their credentials.
#![allow(dead_code, reason = "each file of tests uses some of it")]

use mesh_trust::handshake::HANDSHAKE_LEN_MAX;
use mesh_trust::{Authority, Handshake, Identity, Role, SecureStream, TlsError, Trust, TrustError};
use mesh_wire::id::JobId;
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, ClientConnection, Error};
use rustls_pki_types::UnixTime;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

/// The job of most tests.
pub(crate) const JOB: JobId = JobId([7; 16]);
/// The time of most tests, in seconds since 1970.
pub(crate) const NOW: u64 = 1_800_000_000;
/// The lifetime of authorities in tests.
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// A clock that always returns the same time.
#[derive(Debug)]
pub(crate) struct Still(pub(crate) u64);

impl TimeProvider for Still {
    fn current_time(&self) -> Option<UnixTime> {
        Some(time(self.0))
    }
}

pub(crate) fn time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub(crate) fn authority(job: JobId) -> Authority {
    Authority::create(job, DAY, time(NOW)).expect("a day is a good lifetime")
}

pub(crate) fn identity(authority: &Authority, role: Role) -> Identity {
    authority.issue(role, "someone", time(NOW)).expect("the name is allowed")
}

pub(crate) fn trust_at(identity: &Identity, accepts: &[Role], now: u64) -> Trust {
    Trust::with_clock(identity, accepts, Arc::new(Still(now))).expect("the identity is valid")
}

/// A worker that accepts every role, and a controller that connects to it.
pub(crate) fn both(server: &Identity, client: &Identity) -> (Handshake, Handshake) {
    let server = trust_at(server, &Role::ALL, NOW).accept();
    let client = trust_at(client, &[Role::Worker], NOW).connect().expect("it can speak");
    (server, client)
}

/// The result of a handshake on both sides.
pub(crate) struct HandshakeResults {
    pub(crate) server: Result<SecureStream, TrustError>,
    pub(crate) client: Result<SecureStream, TrustError>,
}

/// Transfers bytes in both directions, at most `piece_len` at a time, until none are pending.
pub(crate) fn run_handshake(
    mut server: Handshake,
    mut client: Handshake,
    piece_len: usize,
) -> HandshakeResults {
    let (mut server_end, mut client_end) = (None, None);
    let mut passed_len = 0;
    loop {
        let to_server = carry(&mut client, &mut server, piece_len, &mut server_end);
        let to_client = carry(&mut server, &mut client, piece_len, &mut client_end);
        passed_len += to_server + to_client;
        assert!(passed_len < 4 * HANDSHAKE_LEN_MAX, "a handshake is short");
        if to_server + to_client == 0 {
            break;
        }
    }
    let server = server_end.map_or_else(|| server.finish(), Err);
    let mut client = client_end.map_or_else(|| client.finish(), Err);
    // A client whose handshake is done learns of its refusal with the first bytes of the
    // connection.
    if let (Err(_), Ok(stream)) = (&server, &mut client)
        && let Err(refusal) = stream.opener.open()
    {
        client = Err(refusal.into());
    }
    HandshakeResults { server, client }
}

fn carry(
    from: &mut Handshake,
    to: &mut Handshake,
    piece_len: usize,
    end: &mut Option<TrustError>,
) -> usize {
    let len = from.pending().len().min(piece_len);
    let bytes = from.pending()[..len].to_vec();
    from.sent(len);
    if end.is_none()
        && let Err(error) = to.feed(&bytes)
    {
        *end = Some(error);
    }
    len
}

/// A connection between a worker and a controller, the worker's side first.
pub(crate) fn linked() -> (SecureStream, SecureStream) {
    let authority = authority(JOB);
    let worker = identity(&authority, Role::Worker);
    let controller = identity(&authority, Role::Controller);
    let (server, client) = both(&worker, &controller);
    let results = run_handshake(server, client, usize::MAX);
    (
        results.server.expect("the client is a member"),
        results.client.expect("the server is a member"),
    )
}

/// Sends all pieces, as far as the buffers allow at a time, and returns the received bytes.
pub(crate) fn send(from: &mut SecureStream, to: &mut SecureStream, pieces: &[&[u8]]) -> Vec<u8> {
    let whole = pieces.concat();
    let mut came = Vec::new();
    let mut gone = 0;
    while gone < whole.len() {
        let pieces = [IoSlice::new(&whole[gone..])];
        gone += from.sealer.write(&pieces).expect("the link is open");
        came.extend(pass(from, to).expect("the link is whole"));
    }
    came
}

/// Transfers the encrypted bytes of one side to the other and decrypts them.
pub(crate) fn pass(from: &mut SecureStream, to: &mut SecureStream) -> Result<Vec<u8>, TlsError> {
    let mut came = Vec::new();
    loop {
        let spare = to.opener.spare();
        let pending = from.sealer.pending();
        let len = pending.len().min(spare.len());
        spare[..len].copy_from_slice(&pending[..len]);
        to.opener.filled(len);
        from.sealer.sent(len);
        while let Some(plain) = to.opener.open()? {
            came.extend_from_slice(plain);
        }
        if len == 0 {
            return Ok(came);
        }
    }
}

/// Runs a handshake. If the server refuses the client, returns the reason and the alert it sends.
pub(crate) fn drive(
    mut server: Handshake,
    mut client: ClientConnection,
) -> Option<(TrustError, AlertDescription)> {
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory takes all");
        }
        let fed = server.feed(&bytes);
        let pending = server.pending().to_vec();
        server.sent(pending.len());
        let mut pending = pending.as_slice();
        let mut told = None;
        while !pending.is_empty() {
            client.read_tls(&mut pending).expect("memory gives all");
            if let Err(Error::AlertReceived(alert)) = client.process_new_packets() {
                told = Some(alert);
            }
        }
        if let Err(refusal) = fed {
            let told = told.unwrap_or(AlertDescription::CloseNotify);
            return Some((refusal, told));
        }
    }
    assert!(server.is_done(), "it is accepted or refused");
    None
}
