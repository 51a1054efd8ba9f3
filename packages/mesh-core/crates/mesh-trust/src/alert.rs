//! The meaning of TLS alerts from the peer.

use crate::error::TrustError;
use rustls::AlertDescription;

const OTHER_JOB: &str = "it does not trust our certificate, which belongs to another job or to a \
    generation that was replaced: start both sides with credentials of the same job";
const CLOCKS: &str = "our certificate is not valid at the time on its clock: rotate the job's \
    credentials, or set the clocks of both hosts";
const NOT_ALLOWED: &str = "our certificate has a role that this connection does not accept: \
    connect with credentials of an accepted role";
const BAD: &str = "it cannot use our certificate: issue a new one with mesh-core";
const MISSING: &str = "it requires a certificate but got none: load credentials before connecting";
const PROTOCOL: &str = "it uses another version of TLS or another protocol: use the same version \
    of mesh-core on both sides";
const CONFUSED: &str = "it did not understand our bytes: check that it is a mesh process, and that \
    nothing between the two changes what they send";
const BROKEN: &str = "it failed: see its log";

/// Converts an alert from the peer to an error.
pub(crate) fn refusal(alert: AlertDescription) -> TrustError {
    use AlertDescription as Alert;
    let (alert, why) = match alert {
        Alert::UnknownCA => ("unknown_ca", OTHER_JOB),
        Alert::CertificateExpired => ("certificate_expired", CLOCKS),
        Alert::CertificateRevoked => ("certificate_revoked", OTHER_JOB),
        Alert::AccessDenied => ("access_denied", NOT_ALLOWED),
        Alert::BadCertificate => ("bad_certificate", BAD),
        Alert::UnsupportedCertificate => ("unsupported_certificate", BAD),
        Alert::CertificateUnknown => ("certificate_unknown", BAD),
        Alert::CertificateRequired => ("certificate_required", MISSING),
        Alert::ProtocolVersion => ("protocol_version", PROTOCOL),
        Alert::NoApplicationProtocol => ("no_application_protocol", PROTOCOL),
        Alert::HandshakeFailure => ("handshake_failure", PROTOCOL),
        Alert::InsufficientSecurity => ("insufficient_security", PROTOCOL),
        Alert::DecryptError => ("decrypt_error", CONFUSED),
        Alert::DecodeError => ("decode_error", CONFUSED),
        Alert::UnexpectedMessage => ("unexpected_message", CONFUSED),
        Alert::IllegalParameter => ("illegal_parameter", CONFUSED),
        Alert::RecordOverflow => ("record_overflow", CONFUSED),
        Alert::BadRecordMac => ("bad_record_mac", CONFUSED),
        Alert::InternalError => ("internal_error", BROKEN),
        Alert::CloseNotify => ("close_notify", BROKEN),
        _ => ("another alert", BROKEN),
    };
    TrustError::Refused { alert, why }
}
