//! Errors of operations on regions.

use super::{DIMS_MAX, LABEL_LEN_MAX, LIST_LEN_MAX, RANK_END};
use thiserror::Error;

/// The reason why a region cannot be created.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region has no dimension of this name.
    #[error("no dimension {dim:?}: {}", hint(known))]
    UnknownDim {
        /// The requested name.
        dim: String,
        /// The existing dimensions.
        known: Vec<String>,
    },
    /// The index is outside the dimension.
    #[error(
        "index {index} is out of range for dimension {dim:?} of size {size}: \
         use -{size} to {}", size - 1
    )]
    OutOfRange {
        /// The indexed dimension.
        dim: String,
        /// The requested index.
        index: i64,
        /// The size of the dimension.
        size: usize,
    },
    /// A slice or list selects no index, but a region has at least one member.
    #[error("the selection of dimension {dim:?} (size {size}) is empty: select at least one index")]
    Empty {
        /// The dimension of the selection.
        dim: String,
        /// The size of the dimension.
        size: usize,
    },
    /// A list contains an index twice.
    #[error("index {index} of dimension {dim:?} is listed twice: list each index once")]
    Repeated {
        /// The dimension of the selection.
        dim: String,
        /// The index.
        index: i64,
    },
    /// A slice has step 0.
    #[error("the slice of dimension {dim:?} has step 0: use a nonzero step")]
    ZeroStep {
        /// The dimension of the selection.
        dim: String,
    },
    /// The product of the requested sizes is not the size of the dimension.
    #[error("cannot split dimension {dim:?} of size {size} into {parts}: {hint}")]
    Split {
        /// The dimension to split.
        dim: String,
        /// The size of the dimension.
        size: usize,
        /// The requested parts.
        parts: String,
        /// The remedy.
        hint: &'static str,
    },
    /// A label is missing, too long or not unique.
    #[error("dimension {label:?} {problem}")]
    Label {
        /// The refused label.
        label: String,
        /// The reason and the remedy.
        problem: &'static str,
    },
    /// The numbers of labels, sizes and strides differ.
    #[error("{labels} labels for {sizes} sizes: give one size (and stride) for each label")]
    Lengths {
        /// The number of labels.
        labels: usize,
        /// The number of sizes or strides.
        sizes: usize,
    },
    /// The region would exceed the maximum number of dimensions.
    #[error("{0} dimensions are over the limit of {DIMS_MAX}: flatten first")]
    TooManyDims(usize),
    /// A dimension has size 0.
    #[error("dimension {0:?} has size 0: give each dimension at least one member")]
    ZeroSize(String),
    /// Ranks would be out of range.
    #[error("ranks would leave 0..{RANK_END}: use smaller sizes, strides or offset")]
    TooLarge,
    /// Two members would have the same rank, or could not be distinguished without a search.
    #[error("strides overlap: each must be longer than all shorter ones with their sizes together")]
    Overlap,
    /// The region has too many layers to be described and too many members to be listed.
    #[error(
        "the region is reshaped too often to be described, and too large to be listed \
         ({0} members, limit {LIST_LEN_MAX}): slice it before reshaping it again"
    )]
    TooDeep(usize),
    /// A list exceeds the maximum number of listed ranks.
    #[error("a list of {0} ranks is over the limit of {LIST_LEN_MAX}: use a slice")]
    ListTooLong(usize),
    /// Bytes that are not an encoded region.
    #[error("not a region: {0}")]
    Malformed(&'static str),
}

/// The reasons why a label is refused.
pub(super) const LABEL_EMPTY: &str = "has no name: name it";
pub(super) const LABEL_TWICE: &str = "is named twice: rename one";
pub(super) const LABEL_LONG: &str = "has a longer name than the limit allows: shorten it";
const _: () = assert!(LABEL_LEN_MAX == 64, "the guides name this limit");

fn hint(known: &[String]) -> String {
    if known.is_empty() {
        "the mesh has no dimensions".to_owned()
    } else {
        format!("use one of {}", known.join(", "))
    }
}
