//! Endpoint numbers in the records of a process.

use std::collections::HashMap;

/// Maximum number of endpoints with a number; later endpoints have none.
pub const NAMES_MAX: usize = 4096;
/// Maximum length in bytes of the name of an endpoint with a number.
pub const NAME_LEN_MAX: usize = 255;

/// Names of endpoints in the order of their numbers, which start with 1.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    names: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u16>,
    /// The result of the last lookup, which is often the result of the next one, too.
    last: u16,
}

impl Endpoints {
    /// Returns the number of a name; 0 for an empty name, and for names without a number.
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

    /// Assigns the next number to a name.
    pub(super) fn append(&mut self, name: &[u8]) {
        self.names.push(name.into());
        if let Ok(number) = u16::try_from(self.names.len()) {
            self.numbers.entry(name.into()).or_insert(number);
        }
    }

    /// Returns how many names have a number.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the names after the first `known`.
    pub(super) fn names(&self, known: usize) -> impl Iterator<Item = &[u8]> {
        self.names.iter().skip(known).map(|name| &**name)
    }
}
