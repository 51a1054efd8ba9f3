//! Variable-length integers (LEB128): one to ten bytes with seven bits each, lowest first.

/// Appends a number.
pub(crate) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Maps a signed number to an unsigned one, with small values near zero (zigzag encoding).
pub(crate) fn fold(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Reverses [`fold`].
pub(crate) fn unfold(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Decodes a number at the start of `bytes`; returns it with its length in bytes.
///
/// Returns `None` if the encoding is truncated, too large, or longer than necessary.
pub(crate) fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if at == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return (*byte != 0 || at == 0).then_some((number, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for number in [0, 1, 127, 128, 300, 1 << 32, u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            assert_eq!(get(&bytes), Some((number, bytes.len())));
            assert_eq!(get(&bytes[..bytes.len() - 1]), None);
            assert_eq!(fold(unfold(number)), number);
        }
        for number in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unfold(fold(number)), number);
        }
    }

    #[test]
    fn overlong_and_overflowing_numbers_are_refused() {
        assert_eq!(get(&[0x80, 0]), None);
        assert_eq!(get(&[0xff; 10]), None);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None);
    }
}
