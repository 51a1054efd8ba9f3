//! Recipes, which list the chunks of a description.
//!
//! ```text
//! recipe = "meshlist" version(1) level (chunk len)*
//! ```
//! The concatenated chunks of a recipe of level 0 are the description. Those of a higher level are
//! the recipe of the next lower level.

use crate::content::chunker::DESCRIPTION;
use crate::error::DecodeError;
use crate::format::cursor::Cursor;
use crate::format::limits::{LEVEL_MAX, RECIPE_LEN_MAX, STREAM_CHUNK_LEN_MAX, STREAM_LEN_MAX};
use crate::format::varint::put;
use mesh_chunks::ChunkId;

const MAGIC: &[u8; 8] = b"meshlist";
const VERSION: u8 = 1;

/// List of the chunks of a description, or of a longer recipe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    level: u8,
    chunks: Vec<(ChunkId, u32)>,
}

/// Concatenated chunks of a recipe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Joined {
    /// The description of a tree.
    Stream(Vec<u8>),
    /// The recipe of the next lower level.
    Recipe(Recipe),
}

impl Recipe {
    /// Decodes the bytes of [`Snapshot::recipe`](crate::Snapshot::recipe).
    ///
    /// # Errors
    /// The bytes have a different format version, are too long, or violate the format.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > RECIPE_LEN_MAX {
            return Err(DecodeError::TooLarge);
        }
        Self::parse_long(bytes)
    }

    fn parse_long(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let magic: [u8; 8] = cursor.array().map_err(|_| DecodeError::Version)?;
        let version = cursor.byte().map_err(|_| DecodeError::Version)?;
        if (&magic, version) != (MAGIC, VERSION) {
            return Err(DecodeError::Version);
        }
        let level = cursor.byte()?;
        if level > LEVEL_MAX {
            return Err(cursor.malformed("too many levels"));
        }
        let mut chunks = Vec::with_capacity(cursor.left() / 34);
        let mut total = 0;
        while !cursor.is_at_end() {
            let chunk = ChunkId(cursor.array()?);
            let len = cursor.at_most(u64::from(STREAM_CHUNK_LEN_MAX), "chunk too long")?;
            if len == 0 {
                return Err(cursor.malformed("empty chunk"));
            }
            total += len;
            chunks.push((chunk, len as u32));
        }
        if total > STREAM_LEN_MAX { Err(DecodeError::TooLarge) } else { Ok(Self { level, chunks }) }
    }

    /// The chunks and their lengths, in order. A chunk may occur several times.
    pub fn chunks(&self) -> &[(ChunkId, u32)] {
        &self.chunks
    }

    /// Number of recipes below this one.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Concatenates the chunks, and verifies them by their ids.
    ///
    /// # Errors
    /// A chunk is missing or has wrong bytes, or the result is not a recipe of the next lower level
    /// although it must be.
    pub fn join(
        &self,
        mut get: impl FnMut(&ChunkId) -> Option<Vec<u8>>,
    ) -> Result<Joined, DecodeError> {
        let mut joined = Vec::new();
        for (chunk, len) in &self.chunks {
            let bytes = get(chunk).ok_or(DecodeError::Missing(*chunk))?;
            if bytes.len() != *len as usize || ChunkId::of(&bytes) != *chunk {
                return Err(DecodeError::Wrong(*chunk));
            }
            joined.extend_from_slice(&bytes);
        }
        let Some(below) = self.level.checked_sub(1) else { return Ok(Joined::Stream(joined)) };
        let recipe = Self::parse_long(&joined)?;
        if recipe.level != below {
            return Err(DecodeError::Malformed {
                at: MAGIC.len() + 1,
                problem: "not the next level",
            });
        }
        Ok(Joined::Recipe(recipe))
    }
}

/// A description and its recipes, lowest level first. The last recipe is within the limit.
#[derive(Debug)]
pub(crate) struct Description {
    /// The stream, followed by all recipes.
    levels: Vec<Vec<u8>>,
    /// Locations of the chunks, sorted by chunk.
    places: Vec<(ChunkId, Place)>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    level: u8,
    start: u32,
    len: u32,
}

impl Description {
    pub(crate) fn new(stream: Vec<u8>) -> Self {
        let mut description = Self { levels: vec![stream], places: Vec::new() };
        loop {
            let recipe = description.list();
            let is_short = recipe.len() <= RECIPE_LEN_MAX;
            description.levels.push(recipe);
            if is_short {
                break;
            }
        }
        description.places.sort_unstable_by_key(|(chunk, _)| *chunk);
        description
    }

    /// Splits the last level into chunks and returns the recipe that lists them.
    fn list(&mut self) -> Vec<u8> {
        let level = (self.levels.len() - 1) as u8;
        let mut recipe = MAGIC.to_vec();
        recipe.extend([VERSION, level]);
        let mut start = 0;
        for piece in DESCRIPTION.pieces(&self.levels[usize::from(level)]) {
            let (chunk, len) = (ChunkId::of(piece), piece.len() as u32);
            recipe.extend_from_slice(&chunk.0);
            put(&mut recipe, u64::from(len));
            self.places.push((chunk, Place { level, start, len }));
            start += len;
        }
        recipe
    }

    pub(crate) fn stream(&self) -> &[u8] {
        &self.levels[0]
    }

    pub(crate) fn recipe(&self) -> &[u8] {
        &self.levels[self.levels.len() - 1]
    }

    /// Returns the bytes of a chunk of the stream or of a recipe.
    pub(crate) fn chunk(&self, chunk: &ChunkId) -> Option<&[u8]> {
        let nth = self.places.binary_search_by_key(chunk, |(other, _)| *other).ok()?;
        let Place { level, start, len } = self.places[nth].1;
        Some(&self.levels[usize::from(level)][start as usize..][..len as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_description_has_a_multi_level_recipe() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        let stream: Vec<u8> = std::iter::repeat_with(&mut next).take(24 << 20).collect();
        let description = Description::new(stream);
        let recipe = Recipe::parse(description.recipe()).expect("it is short");
        assert_eq!(recipe.level(), 1);
        let get = |chunk: &ChunkId| description.chunk(chunk).map(<[u8]>::to_vec);
        let Ok(Joined::Recipe(recipe)) = recipe.join(get) else { panic!("not the level below") };
        assert_eq!(recipe.level(), 0);
        let lens = recipe.chunks().iter().map(|(_, len)| *len as usize);
        assert_eq!(lens.sum::<usize>(), 24 << 20);
        let average = (24 << 20) / recipe.chunks().len();
        assert!((3500..4700).contains(&average), "{average}");
        let Ok(Joined::Stream(stream)) = recipe.join(get) else { panic!("not the description") };
        assert!(stream == description.stream());
        assert_eq!(description.chunk(&ChunkId([0; 32])), None);
    }

    #[test]
    fn a_short_description_has_a_single_level_recipe() {
        let description = Description::new(b"short".to_vec());
        let recipe = Recipe::parse(description.recipe()).expect("it is short");
        assert_eq!(recipe.chunks(), [(ChunkId::of(b"short"), 5)]);
        assert_eq!(recipe.level(), 0);
    }
}
