//! Credentials are replaced while the job runs, and old ones are no longer accepted.

use crate::pair;
use crate::pair::{DAY, JOB, NOW, both, identity, run_handshake, send, time, trust_at};
use mesh_trust::{Authority, Identity, Role, TrustError};

fn can_meet(server: &Identity, client: &Identity) -> bool {
    let (server, client) = both(server, client);
    let results = run_handshake(server, client, usize::MAX);
    results.server.is_ok() && results.client.is_ok()
}

#[test]
fn old_and_new_members_accept_each_other_while_both_are_valid() {
    let old = pair::authority(JOB);
    let new = old.rotate(DAY, time(NOW)).expect("it is valid");
    assert_eq!((new.generation(), new.job()), (2, JOB));
    let members =
        [identity(&old, Role::Worker), identity(&new, Role::Worker)].map(|one| (one.clone(), one));
    for (server, _) in &members {
        for (_, client) in &members {
            assert!(can_meet(server, client), "{:?} and {:?}", server.me(), client.me());
        }
    }
}

#[test]
fn a_connection_continues_after_credentials_are_rotated() {
    let (mut worker, mut controller) = pair::linked();
    let new = pair::authority(JOB).rotate(DAY, time(NOW)).expect("it is valid");
    drop(identity(&new, Role::Worker));
    assert_eq!(send(&mut worker, &mut controller, &[b"still here"]), b"still here");
}

#[test]
fn a_stolen_old_certificate_is_refused_once_its_authority_is_forgotten() {
    let old = pair::authority(JOB);
    let stolen = identity(&old, Role::Controller);
    let mut new = old.rotate(DAY, time(NOW)).expect("it is valid");
    assert!(can_meet(&identity(&new, Role::Worker), &stolen));
    new.forget_previous();
    let (server, client) = both(&identity(&new, Role::Worker), &stolen);
    let results = run_handshake(server, client, usize::MAX);
    assert!(results.server.is_err() && results.client.is_err());
    // An attacker that serves with the stolen certificate is refused by the client.
    let server = trust_at(&stolen, &Role::ALL, NOW).accept();
    let client = trust_at(&identity(&new, Role::Worker), &Role::ALL, NOW).connect();
    let results = run_handshake(server, client.expect("it can speak"), usize::MAX);
    assert_eq!(results.client.err(), Some(TrustError::Stale { theirs: 1, oldest: 2 }));
    let said = results.server.expect_err("it is refused").to_string();
    assert!(said.contains("certificate_revoked"), "{said}");
}

#[test]
fn an_authority_older_than_the_previous_one_is_not_accepted() {
    let first = pair::authority(JOB);
    let third = first.rotate(DAY, time(NOW)).and_then(|second| second.rotate(DAY, time(NOW)));
    let third = third.expect("both are valid");
    assert!(!can_meet(&identity(&third, Role::Worker), &identity(&first, Role::Worker)));
    assert_eq!(identity(&third, Role::Worker).authorities().len(), 2);
}

#[test]
fn an_expired_previous_authority_is_not_accepted() {
    let old = pair::authority(JOB);
    let new = old.rotate(3 * DAY, time(NOW + DAY.as_secs() / 2)).expect("it is valid");
    let later = NOW + DAY.as_secs() + 1;
    let member = new.issue(Role::Worker, "late", time(later)).expect("it is valid");
    assert_eq!(member.authorities().len(), 1);
    let said = old.rotate(DAY, time(later)).expect_err("nobody would believe it").to_string();
    assert!(said.starts_with("the certificate of the authority of job 0707"), "{said}");
    assert!(matches!(
        old.issue(Role::Worker, "late", time(later)),
        Err(TrustError::Expired { .. })
    ));
}

#[test]
fn a_member_cannot_sign_for_others() {
    // The certificate and key of a worker, presented as an authority with its key.
    let member = identity(&pair::authority(JOB), Role::Worker);
    let text = member.to_pem();
    let end = text.rfind("-----BEGIN CERTIFICATE").expect("the authority stands last");
    let said = Authority::from_pem(&text[..end]).expect_err("it is no authority").to_string();
    assert!(said.starts_with("the authority cannot be read, it contains no"), "{said}");
}

#[test]
fn credentials_are_renewed_long_before_they_expire() {
    let authority = pair::authority(JOB);
    let left = authority.expires_at().as_secs() - authority.renew_at().as_secs();
    assert!(left > DAY.as_secs() / 4 && left < DAY.as_secs() / 2);
    assert_eq!(identity(&authority, Role::Worker).renew_at(), authority.renew_at());
    assert_eq!(identity(&authority, Role::Worker).expires_at(), time(NOW + DAY.as_secs()));
}

#[test]
fn an_invalid_lifetime_is_refused() {
    for seconds in [0, 59, 400_000_000] {
        let valid_for = std::time::Duration::from_secs(seconds);
        let made = Authority::create(JOB, valid_for, time(NOW));
        assert_eq!(made.err(), Some(TrustError::Lifetime { valid_for }));
    }
}

#[test]
fn debug_output_contains_no_key() {
    let authority = pair::authority(JOB);
    let member = identity(&authority, Role::Worker);
    for text in [format!("{authority:?}"), format!("{member:?}")] {
        assert!(text.len() < 250 && !text.contains("key"), "{text}");
    }
}
