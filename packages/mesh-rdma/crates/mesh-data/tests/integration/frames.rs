//! Encoded messages are decoded to the same values, and anything else is refused.

use mesh_data::PeerDescriptor;
use mesh_data::frame::{REPLY_LEN, REQUEST_LEN, Reply, Request};
use proptest::prelude::*;
use std::net::IpAddr;

fn descriptors() -> impl Strategy<Value = PeerDescriptor> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ];
    let tokens = any::<([u8; 16], [u8; 16], [u8; 16], [u8; 32])>();
    let place = (any::<u16>(), prop::collection::vec(address, 0..20));
    (tokens, place, ".{0,40}").prop_map(|((token, secret, boot, fingerprint), place, name)| {
        let (port, addresses) = place;
        PeerDescriptor { token, secret, boot, fingerprint, port, addresses, name }
    })
}

proptest! {
    #[test]
    fn a_descriptor_round_trips(descriptor in descriptors()) {
        prop_assert_eq!(PeerDescriptor::decode(&descriptor.encode()), Some(descriptor));
    }

    #[test]
    fn a_truncated_descriptor_has_a_shorter_name_or_is_refused(
        descriptor in descriptors(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = descriptor.encode();
        let head = bytes.len() - descriptor.name.len();
        let read = PeerDescriptor::decode(&bytes[..cut.index(bytes.len())]);
        prop_assert!(read.is_none_or(|read| descriptor.name.starts_with(&read.name)));
        prop_assert_eq!(PeerDescriptor::decode(&bytes[..cut.index(head)]), None);
    }

    #[test]
    fn descriptors_decoded_from_arbitrary_bytes_round_trip(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut known = bytes;
        if let Some(version) = known.first_mut() {
            *version = 1;
        }
        if let Some(descriptor) = PeerDescriptor::decode(&known) {
            prop_assert_eq!(descriptor.encode(), known);
        }
    }

    #[test]
    fn requests_decoded_from_arbitrary_bytes_round_trip(bytes in any::<[u8; REQUEST_LEN]>()) {
        let mut bytes = bytes;
        bytes[0] %= 16;
        if let Some(request) = Request::decode(&bytes) {
            bytes[1..4].fill(0);
            prop_assert_eq!(request.encode(), bytes);
        }
    }

    #[test]
    fn replies_decoded_from_arbitrary_bytes_round_trip(bytes in any::<[u8; REPLY_LEN]>()) {
        let mut bytes = bytes;
        bytes[0] %= 8;
        if let Some(reply) = Reply::decode(&bytes) {
            bytes[1..4].fill(0);
            prop_assert_eq!(reply.encode(), bytes);
        }
    }
}
