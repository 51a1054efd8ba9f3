//! The numbers that stand for endpoints in the records of a process.

use std::collections::HashMap;

/// How many endpoints have a number; those that come later have none.
pub const NAMES_MAX: usize = 4096;
/// How long the name of an endpoint with a number may be, in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// Names of endpoints in the order of their numbers, which begin with 1.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    names: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u16>,
    /// The number that was asked for last: often the next one too.
    last: u16,
}

impl Endpoints {
    /// The number of a name; 0 for none, and for what gets none.
    pub(super) fn number(&mut self, name: &[u8]) -> u16 {
        if let Some(last) = usize::from(self.last).checked_sub(1)
            && *self.names[last] == *name
        {
            return self.last;
        }
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if name.is_empty() || name.len() > NAME_LEN_MAX => return 0,
            None if self.names.len() >= NAMES_MAX => return 0,
            None => {
                self.append(name);
                u16::try_from(self.names.len()).expect("fewer names than numbers")
            }
        };
        self.last = number;
        number
    }

    /// Gives a name the next number.
    pub(super) fn append(&mut self, name: &[u8]) {
        self.names.push(name.into());
        if let Ok(number) = u16::try_from(self.names.len()) {
            self.numbers.entry(name.into()).or_insert(number);
        }
    }

    /// How many have a number.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// The names behind the first `known`.
    pub(super) fn names(&self, known: usize) -> impl Iterator<Item = &[u8]> {
        self.names.iter().skip(known).map(|name| &**name)
    }
}
