//! Encoded messages are decoded to the same values, and anything else is refused.

use mesh_data::Card;
use mesh_data::frame::{REPLY_LEN, REQUEST_LEN, Reply, Request};
use proptest::prelude::*;
use std::net::IpAddr;

fn card() -> impl Strategy<Value = Card> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ];
    let tokens = any::<([u8; 16], [u8; 16], [u8; 16], [u8; 32])>();
    let place = (any::<u16>(), prop::collection::vec(address, 0..20));
    (tokens, place, ".{0,40}").prop_map(|((token, secret, boot, fingerprint), place, name)| {
        let (port, addresses) = place;
        Card { token, secret, boot, fingerprint, port, addresses, name }
    })
}

proptest! {
    #[test]
    fn a_card_is_read_as_it_was_written(card in card()) {
        prop_assert_eq!(Card::decode(&card.encode()), Some(card));
    }

    #[test]
    fn a_card_that_is_cut_is_another_name_or_none(
        card in card(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = card.encode();
        let head = bytes.len() - card.name.len();
        let read = Card::decode(&bytes[..cut.index(bytes.len())]);
        prop_assert!(read.is_none_or(|read| card.name.starts_with(&read.name)));
        prop_assert_eq!(Card::decode(&bytes[..cut.index(head)]), None);
    }

    #[test]
    fn any_bytes_are_a_card_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut known = bytes;
        if let Some(version) = known.first_mut() {
            *version = 1;
        }
        if let Some(card) = Card::decode(&known) {
            prop_assert_eq!(card.encode(), known);
        }
    }

    #[test]
    fn any_bytes_are_a_request_that_says_the_same_or_none(bytes in any::<[u8; REQUEST_LEN]>()) {
        let mut bytes = bytes;
        bytes[0] %= 16;
        if let Some(request) = Request::decode(&bytes) {
            bytes[1..4].fill(0);
            prop_assert_eq!(request.encode(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_a_reply_that_says_the_same_or_none(bytes in any::<[u8; REPLY_LEN]>()) {
        let mut bytes = bytes;
        bytes[0] %= 8;
        if let Some(reply) = Reply::decode(&bytes) {
            bytes[1..4].fill(0);
            prop_assert_eq!(reply.encode(), bytes);
        }
    }
}
