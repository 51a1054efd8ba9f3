//! Two members of a job, and an in-memory link between them.

use mesh_trust::{Authority, Handshake, Role, SecureStream, Trust, TrustError};
use mesh_wire::id::JobId;
use rustls_pki_types::UnixTime;
use std::sync::LazyLock;
use std::time::Duration;

static MEMBERS: LazyLock<(Trust, Trust)> = LazyLock::new(|| {
    let day = Duration::from_secs(86_400);
    let authority =
        Authority::create(JobId([7; 16]), day, UnixTime::now()).expect("a day is a good lifetime");
    let member = |role| {
        let identity = authority.issue(role, "fuzzed", UnixTime::now());
        identity.and_then(|one| Trust::new(&one, &Role::ALL)).expect("the keys are good")
    };
    (member(Role::Worker), member(Role::Controller))
});

/// Returns a worker and the controller of its job.
pub fn members() -> &'static (Trust, Trust) {
    &MEMBERS
}

/// Transfers the pending handshake bytes of `from` to `to`, after `change` has modified them.
///
/// # Errors
/// The reason why `to` rejects the bytes.
pub fn carry(
    from: &mut Handshake,
    to: &mut Handshake,
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<(), TrustError> {
    let mut bytes = from.pending().to_vec();
    from.sent(bytes.len());
    change(&mut bytes);
    to.feed(&bytes)
}

/// Completes a handshake of the two; returns the streams of the worker and of the controller.
pub fn linked() -> (SecureStream, SecureStream) {
    let (worker, controller) = members();
    let mut server = worker.accept();
    let mut client = controller.connect().expect("there is randomness");
    while !(server.is_done() && client.is_done()) {
        carry(&mut client, &mut server, |_| ()).expect("nothing was changed");
        carry(&mut server, &mut client, |_| ()).expect("nothing was changed");
    }
    (server.finish().expect("it is done"), client.finish().expect("it is done"))
}
