//! Members of a job accept each other, and all other peers are refused.

use crate::pair;
use crate::pair::{
    DAY, HandshakeResults, JOB, NOW, Still, both, drive, identity, run_handshake, time, trust_at,
};
use mesh_trust::trust::{peer_of, server_name};
use mesh_trust::{Role, Trust, TrustError};
use mesh_wire::id::JobId;
use rustls::{ClientConnection, ServerConnection};
use std::sync::Arc;

#[test]
fn both_sides_learn_the_identity_of_the_other() {
    let authority = pair::authority(JOB);
    let worker = authority.issue(Role::Worker, "host-1", time(NOW)).expect("a name");
    let controller = authority.issue(Role::Controller, "script", time(NOW)).expect("a name");
    for piece_len in [usize::MAX, 1, 7, 1000] {
        let (server, client) = both(&worker, &controller);
        let results = run_handshake(server, client, piece_len);
        let (server, client) =
            (results.server.expect("a member"), results.client.expect("a member"));
        assert_eq!(&server.peer, controller.me());
        assert_eq!(&client.peer, worker.me());
        assert_eq!(client.peer.to_string(), "worker \"host-1\"");
        assert_eq!((client.peer.job(), client.peer.generation()), (JOB, 1));
    }
}

/// Asserts that both sides are refused, with errors that start with these texts.
#[track_caller]
fn check_refused(results: HandshakeResults, server: &str, client: &str) {
    let said = |end: Result<_, TrustError>| match end {
        Ok(_) => panic!("it was accepted"),
        Err(error) => TrustError::to_string(&error),
    };
    let (by_server, by_client) = (said(results.server), said(results.client));
    assert!(by_server.starts_with(server), "the server says {by_server:?}");
    assert!(by_client.starts_with(client), "the client says {by_client:?}");
}

#[test]
fn a_peer_of_another_job_is_refused_and_both_jobs_are_named() {
    let ours = pair::authority(JOB);
    let theirs = pair::authority(JobId([8; 16]));
    let (server, client) =
        both(&identity(&ours, Role::Worker), &identity(&theirs, Role::Controller));
    check_refused(
        run_handshake(server, client, usize::MAX),
        "the peer rejected this side (unknown_ca): it does not trust our certificate",
        "the peer belongs to job 07070707070707070707070707070707, and this process to \
         08080808080808080808080808080808: start both with credentials of the same job",
    );
}

#[test]
fn a_forged_authority_of_the_job_is_refused() {
    let ours = pair::authority(JOB);
    let forged = pair::authority(JOB);
    let (server, client) =
        both(&identity(&ours, Role::Worker), &identity(&forged, Role::Controller));
    check_refused(
        run_handshake(server, client, usize::MAX),
        "the peer rejected this side (unknown_ca)",
        "the peer's certificate is not signed by the authority of job 0707",
    );
}

#[test]
fn the_server_verifies_a_client_that_does_not_verify_it() {
    let ours = pair::authority(JOB);
    let worker = identity(&ours, Role::Worker);
    let forged = pair::authority(JOB);
    let server = trust_at(&worker, &Role::ALL, NOW).accept();
    // The client verifies nothing, and presents a certificate of another authority.
    let stranger = trust_at(&identity(&forged, Role::Controller), &Role::ALL, NOW);
    let client = careless_client(&stranger);
    let (refusal, alert) = drive(server, client).expect("it is refused");
    assert!(matches!(refusal, TrustError::UnknownAuthority { .. }), "{refusal}");
    assert_eq!(alert, rustls::AlertDescription::UnknownCA);
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let authority = pair::authority(JOB);
    let server = trust_at(&identity(&authority, Role::Worker), &Role::ALL, NOW).accept();
    let trust = trust_at(&identity(&authority, Role::Controller), &Role::ALL, NOW);
    let mut config = trust.client_config().expect("a configuration");
    config.client_auth_cert_resolver = Arc::new(Nothing);
    let client = ClientConnection::new(Arc::new(config), server_name()).expect("a client");
    let (refusal, alert) = drive(server, client).expect("it is refused");
    assert_eq!(refusal, TrustError::NoCertificate);
    assert_eq!(alert, rustls::AlertDescription::CertificateRequired);
}

#[test]
fn the_error_says_how_long_ago_a_certificate_expired() {
    let authority = pair::authority(JOB);
    let (worker, controller) =
        (identity(&authority, Role::Worker), identity(&authority, Role::Controller));
    let later = NOW + DAY.as_secs() + 600;
    // The client's clock has stopped, the server's clock has not.
    let young = authority.rotate(2 * DAY, time(NOW)).expect("the authority is valid");
    let server = trust_at(&identity(&young, Role::Worker), &Role::ALL, later).accept();
    let client = trust_at(&controller, &Role::ALL, NOW).connect().expect("it can speak");
    check_refused(
        run_handshake(server, client, usize::MAX),
        "the certificate of the peer (controller \"someone\") expired 10 min before the time \
         on this host's clock: rotate the job's credentials, or set the clocks",
        "the peer rejected this side (certificate_expired): our certificate is not valid",
    );
    let dead = Trust::with_clock(&worker, &Role::ALL, Arc::new(Still(later)));
    let said = dead.expect_err("nobody would believe it").to_string();
    assert!(said.starts_with("the certificate of this process (worker \"someone\") expired"));
}

#[test]
fn the_error_says_how_long_until_a_certificate_is_valid() {
    let authority = pair::authority(JOB);
    let young = authority.rotate(DAY, time(NOW + 3600)).expect("the authority is valid");
    let young = young.issue(Role::Controller, "someone", time(NOW + 3600)).expect("a name");
    // Certificates are valid from five minutes before they are issued.
    let server = trust_at(&identity(&authority, Role::Worker), &Role::ALL, NOW).accept();
    let client = trust_at(&young, &Role::ALL, NOW + 3600).connect().expect("it can speak");
    check_refused(
        run_handshake(server, client, usize::MAX),
        "the certificate of the peer (controller \"someone\") begins 55 min after the time \
         on this host's clock: set the clocks of both hosts",
        "the peer rejected this side (certificate_expired): our certificate is not valid",
    );
}

#[test]
fn a_small_clock_skew_is_tolerated() {
    let authority = pair::authority(JOB);
    let (worker, controller) =
        (identity(&authority, Role::Worker), identity(&authority, Role::Controller));
    let server = trust_at(&worker, &Role::ALL, NOW - 240).accept();
    let client = trust_at(&controller, &Role::ALL, NOW).connect().expect("it can speak");
    assert!(run_handshake(server, client, usize::MAX).server.is_ok());
}

#[test]
fn a_role_that_the_connection_does_not_accept_is_refused() {
    let authority = pair::authority(JOB);
    let worker = identity(&authority, Role::Worker);
    let server = trust_at(&worker, &[Role::Controller], NOW).accept();
    let client = trust_at(&worker, &[Role::Worker], NOW).connect().expect("it can speak");
    check_refused(
        run_handshake(server, client, usize::MAX),
        "the peer is worker \"someone\", and this connection accepts only controller",
        "the peer rejected this side (access_denied): our certificate has a role",
    );
    let server = trust_at(&worker, &Role::ALL, NOW).accept();
    let client = trust_at(&worker, &[Role::Controller], NOW).connect().expect("it can speak");
    check_refused(
        run_handshake(server, client, usize::MAX),
        "the peer rejected this side (access_denied)",
        "the peer is worker \"someone\", and this connection accepts only controller",
    );
}

#[test]
fn a_peer_without_the_mesh_protocol_is_refused() {
    let authority = pair::authority(JOB);
    let trust = trust_at(&identity(&authority, Role::Worker), &Role::ALL, NOW);
    for (protocols, word) in [(vec![], "no protocol"), (vec![b"h2".to_vec()], "no protocol")] {
        let mut config = trust.client_config().expect("a configuration");
        config.alpn_protocols = protocols;
        let client = ClientConnection::new(Arc::new(config), server_name()).expect("a client");
        let (refusal, _) = drive(trust.accept(), client).expect("it is refused");
        assert!(refusal.to_string().contains(word), "{refusal}");
    }
}

#[test]
fn the_configurations_work_with_rustls_alone() {
    let authority = pair::authority(JOB);
    let trust = trust_at(&identity(&authority, Role::Worker), &Role::ALL, NOW);
    let server = Arc::new(trust.server_config().expect("a configuration"));
    let client = Arc::new(trust.client_config().expect("a configuration"));
    let mut server = ServerConnection::new(server).expect("a server");
    let mut client = ClientConnection::new(client, server_name()).expect("a client");
    assert_eq!(peer_of(&client), Err(TrustError::NoCertificate));
    let mut bytes = Vec::new();
    for _ in 0..3 {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory takes all");
        }
        server.read_tls(&mut bytes.as_slice()).expect("memory gives all");
        server.process_new_packets().expect("the client is a member");
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory takes all");
        }
        client.read_tls(&mut bytes.as_slice()).expect("memory gives all");
        client.process_new_packets().expect("the server is a member");
    }
    assert_eq!(peer_of(&server).expect("it is done").role(), Role::Worker);
    assert_eq!(peer_of(&client).expect("it is done").job(), JOB);
}

/// A client that has no certificate.
#[derive(Debug)]
struct Nothing;

impl rustls::client::ResolvesClientCert for Nothing {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// A client that accepts any server.
fn careless_client(trust: &Trust) -> ClientConnection {
    let mut config = trust.client_config().expect("a configuration");
    config.dangerous().set_certificate_verifier(Arc::new(AcceptAnyCertificate));
    ClientConnection::new(Arc::new(config), server_name()).expect("a client")
}

#[derive(Debug)]
struct AcceptAnyCertificate;

impl rustls::client::danger::ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
