//! The ranks of a mesh that a message addresses: an array with named dimensions, described and
//! never enumerated.
//!
//! ```
//! use mesh_wire::region::{Region, Selector};
//! let mesh = Region::row_major(&["hosts", "gpus"], &[2, 4])?;
//! let odd = mesh.select("gpus", &Selector::Range { start: Some(1), stop: None, step: 2 })?;
//! assert_eq!(odd.ranks().collect::<Vec<_>>(), [1, 3, 5, 7]);
//! let flat = odd.flatten("workers")?;
//! assert_eq!((flat.rank_at(2), flat.index_of(5)), (Some(5), Some(2)));
//! # Ok::<(), mesh_wire::region::RegionError>(())
//! ```
//!
//! # Bounded size of nested slices
//! A region is a stack of layers. The top layer has one axis for each dimension, and maps a
//! row-major index to a number. This number is an index into the layer below; the number from the
//! bottom layer is a rank. Slicing changes one axis of the top layer. Flattening and splitting
//! merge or split axes if the strides allow it. If they do not, an identity layer with the new
//! dimensions is added at the top, which can always be sliced and split again. Two layers are
//! merged as soon as the upper one no longer crosses axes of the lower one, so most regions have
//! one layer. Ranks are listed only if the user passed a list, or if the limit on layers is
//! reached.

mod axis;
mod error;
mod layer;
mod reshape;
mod wire;

pub use error::RegionError;

use axis::Axis;
use layer::Layer;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The maximum number of dimensions of a region.
pub const DIMS_MAX: usize = 16;
/// The maximum length of a label in bytes.
pub const LABEL_LEN_MAX: usize = 64;
/// The maximum number of listed ranks of a region, over all dimensions.
pub const LIST_LEN_MAX: usize = 1 << 17;
/// The maximum number of layers. A region that would exceed it lists its ranks instead, and is
/// refused if it has too many members for that.
pub const LAYERS_MAX: usize = 8;
/// The exclusive upper bound of ranks: a frame stores a rank in 32 bits.
pub const RANK_END: i64 = 1 << 32;

const LEN_MAX: usize = RANK_END as usize;

/// An array with named dimensions over the ranks of a mesh. It has at least one member.
///
/// A member has an *index*, which is its row-major position in the region, and a *rank*, which is
/// its position in the mesh that contains the region. Two regions are equal if they have the same
/// dimensions in the same order and the same ranks in the same order, no matter how they were
/// created.
#[derive(Clone, Debug)]
pub struct Region {
    /// Labels are shared, because most operations keep them.
    labels: Vec<Arc<str>>,
    /// The layers, top first. At least one exists, and its axes are the dimensions.
    layers: Vec<Layer>,
}

/// A selection from one dimension. Negative numbers count from the end, as in Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// One index; the dimension is removed.
    Index(i64),
    /// Every `step`-th index from `start` to `stop`; the bounds are clamped.
    Range {
        /// The first index; by default the first or last index of the dimension, depending on the
        /// sign of `step`.
        start: Option<i64>,
        /// The exclusive end; by default the opposite end of the dimension.
        stop: Option<i64>,
        /// The distance between indices; may be negative.
        step: i64,
    },
    /// These indices, in this order.
    List(Vec<i64>),
}

impl Region {
    /// Creates the region of a whole mesh with these dimensions, ranked in row-major order.
    ///
    /// # Errors
    /// [`RegionError`] if labels and sizes do not match or exceed a limit.
    pub fn row_major(labels: &[&str], sizes: &[usize]) -> Result<Self, RegionError> {
        check_lengths(labels.len(), sizes.len())?;
        check_sizes(labels, sizes)?;
        let len = sizes.iter().try_fold(1_usize, |len, &size| len.checked_mul(size));
        if len.is_none_or(|len| len > LEN_MAX) {
            return Err(RegionError::TooLarge);
        }
        Self::assemble(names(labels), vec![Layer::identity(sizes)])
    }

    /// Creates a strided region: the member at coordinates `c` has rank `offset + sum(c * stride)`.
    ///
    /// # Errors
    /// [`RegionError`] as for [`Region::row_major`], and if two members could have the same rank:
    /// each stride must be larger than the extents of all dimensions with smaller strides together.
    pub fn strided(
        labels: &[&str],
        sizes: &[usize],
        strides: &[i64],
        offset: u32,
    ) -> Result<Self, RegionError> {
        check_lengths(labels.len(), sizes.len())?;
        check_lengths(labels.len(), strides.len())?;
        check_sizes(labels, sizes)?;
        let axes = sizes.iter().zip(strides).map(|(&size, &stride)| Axis::even(size, stride));
        let layer = Layer { offset: i64::from(offset), axes: axes.collect() };
        Self::assemble(names(labels), vec![layer])
    }

    /// Validates external input, from the bottom layer up.
    fn assemble(labels: Vec<Arc<str>>, mut layers: Vec<Layer>) -> Result<Self, RegionError> {
        check_labels(&labels)?;
        let mut end = RANK_END;
        for layer in layers.iter().rev() {
            layer.check(end)?;
            end = layer.len() as i64;
        }
        assert_eq!(labels.len(), layers[0].axes.len(), "the caller made an axis for each label");
        for below in &mut layers[1..] {
            *below = below.merged();
        }
        let mut region = Self { labels, layers };
        region.join_layers();
        Ok(region)
    }

    /// The names of the dimensions, outermost first.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.labels.iter().map(AsRef::as_ref)
    }

    /// The sizes of the dimensions, outermost first.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.top().axes.iter().map(Axis::size)
    }

    /// The rank of the first member, and the stride of each dimension; `None` if a list or a
    /// flattened slice has no constant stride. A dimension of size 1 has stride 0.
    pub fn strides(&self) -> Option<(u32, Vec<i64>)> {
        let [layer] = self.layers.as_slice() else { return None };
        let strides = layer.axes.iter().map(Axis::stride).collect::<Option<_>>()?;
        Some((layer.offset as u32, strides))
    }

    /// The size of one dimension.
    ///
    /// # Errors
    /// [`RegionError::UnknownDim`] if the region has no such dimension.
    pub fn size(&self, dim: &str) -> Result<usize, RegionError> {
        Ok(self.top().axes[self.place(dim)?].size())
    }

    /// The number of members, which is never 0.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.top().len()
    }

    /// The rank of the member at `index`; `None` if `index` is out of range.
    pub fn rank_at(&self, index: usize) -> Option<u32> {
        (index < self.len()).then(|| self.rank_below(index))
    }

    /// The index of the member with this rank; `None` if the region does not contain it.
    pub fn index_of(&self, rank: u32) -> Option<usize> {
        let mut number = i64::from(rank);
        for layer in self.layers.iter().rev() {
            number = layer.index_of(number)? as i64;
        }
        Some(number as usize)
    }

    /// The coordinates of the member at `index`; `None` if `index` is out of range.
    pub fn coordinates(&self, mut index: usize) -> Option<Vec<usize>> {
        if index >= self.len() {
            return None;
        }
        let mut coordinates = vec![0; self.labels.len()];
        for (coordinate, axis) in coordinates.iter_mut().zip(&self.top().axes).rev() {
            *coordinate = index % axis.size();
            index /= axis.size();
        }
        Some(coordinates)
    }

    /// An iterator over the ranks of all members in index order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = u32> + DoubleEndedIterator + '_ {
        Ranks { region: self, next: 0, end: self.len() }
    }

    /// Whether index and rank of every member are equal, as in a whole row-major mesh.
    pub fn is_row_major_whole(&self) -> bool {
        match self.layers.as_slice() {
            [layer] => {
                let merged = layer.merged();
                merged.offset == 0
                    && match merged.axes.as_slice() {
                        [] => true,
                        [axis] => axis.stride() == Some(1),
                        _ => false,
                    }
            }
            _ => self.ranks().eq(0..=self.len() as u32 - 1),
        }
    }

    fn top(&self) -> &Layer {
        &self.layers[0]
    }

    /// The position of a dimension.
    fn place(&self, dim: &str) -> Result<usize, RegionError> {
        self.labels().position(|label| label == dim).ok_or_else(|| RegionError::UnknownDim {
            dim: dim.to_owned(),
            known: self.labels().map(str::to_owned).collect(),
        })
    }

    /// [`Region::rank_at`] for an index that is known to be in range.
    fn rank_below(&self, index: usize) -> u32 {
        self.layers.iter().fold(index, |index, layer| layer.at(index) as usize) as u32
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Self) -> bool {
        if self.labels != other.labels || !self.sizes().eq(other.sizes()) {
            return false;
        }
        // A single layer has a canonical form; only stacks can differ although they are equivalent.
        self.layers == other.layers
            || (self.layers.len().max(other.layers.len()) > 1 && self.ranks().eq(other.ranks()))
    }
}

impl Eq for Region {}

impl Hash for Region {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let len = self.len();
        self.labels.hash(state);
        self.sizes().for_each(|size| size.hash(state));
        // A sample of ranks is sufficient, because equal regions agree on each of them.
        for index in [0, 1, len / 3, len / 2, len - 1] {
            self.rank_at(index).hash(state);
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (at, (label, size)) in self.labels().zip(self.sizes()).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{label}: {size}")?;
        }
        f.write_str("}")
    }
}

/// An iterator over the remaining ranks of a region.
struct Ranks<'a> {
    region: &'a Region,
    next: usize,
    end: usize,
}

impl Iterator for Ranks<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let index = (self.next < self.end).then_some(self.next)?;
        self.next += 1;
        Some(self.region.rank_below(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }

    fn nth(&mut self, skipped: usize) -> Option<u32> {
        self.next = self.next.saturating_add(skipped).min(self.end);
        self.next()
    }
}

impl DoubleEndedIterator for Ranks<'_> {
    fn next_back(&mut self) -> Option<u32> {
        self.end = (self.next < self.end).then(|| self.end - 1)?;
        Some(self.region.rank_below(self.end))
    }
}

impl ExactSizeIterator for Ranks<'_> {}

fn names(labels: &[&str]) -> Vec<Arc<str>> {
    labels.iter().map(|&label| label.into()).collect()
}

fn check_lengths(labels: usize, sizes: usize) -> Result<(), RegionError> {
    if labels == sizes { Ok(()) } else { Err(RegionError::Lengths { labels, sizes }) }
}

fn check_sizes(labels: &[&str], sizes: &[usize]) -> Result<(), RegionError> {
    match labels.iter().zip(sizes).find(|(_, size)| **size == 0) {
        Some((label, _)) => Err(RegionError::ZeroSize((*label).to_owned())),
        None => Ok(()),
    }
}

fn check_labels(labels: &[Arc<str>]) -> Result<(), RegionError> {
    if labels.len() > DIMS_MAX {
        return Err(RegionError::TooManyDims(labels.len()));
    }
    for (at, label) in labels.iter().enumerate() {
        let problem = if label.is_empty() {
            error::LABEL_EMPTY
        } else if label.len() > LABEL_LEN_MAX {
            error::LABEL_LONG
        } else if labels[..at].contains(label) {
            error::LABEL_TWICE
        } else {
            continue;
        };
        return Err(RegionError::Label { label: label.to_string(), problem });
    }
    Ok(())
}

const _: () = assert!(usize::BITS >= 64, "a region may have 2^32 members");
