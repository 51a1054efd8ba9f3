//! Why a region cannot be made.

use super::{DIMS_MAX, LABEL_LEN_MAX, LIST_LEN_MAX, RANK_END};
use thiserror::Error;

/// Why a region cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region has no dimension of this name.
    #[error("no dimension {dim:?}: {}", hint(known))]
    UnknownDim {
        /// The name asked for.
        dim: String,
        /// The dimensions that there are.
        known: Vec<String>,
    },
    /// The dimension is shorter.
    #[error(
        "index {index} is out of range for dimension {dim:?} of size {size}: \
         use -{size} to {}", size - 1
    )]
    OutOfRange {
        /// The dimension indexed.
        dim: String,
        /// The index asked for.
        index: i64,
        /// Its size.
        size: usize,
    },
    /// A slice or a list selects nothing; a region has at least one member.
    #[error("the selection of dimension {dim:?} (size {size}) is empty: select at least one index")]
    Empty {
        /// The dimension selected from.
        dim: String,
        /// Its size.
        size: usize,
    },
    /// A list names a member twice.
    #[error("index {index} of dimension {dim:?} is listed twice: list each index once")]
    Repeated {
        /// The dimension selected from.
        dim: String,
        /// The index.
        index: i64,
    },
    /// A slice with step 0.
    #[error("the slice of dimension {dim:?} has step 0: use a step that moves")]
    ZeroStep {
        /// The dimension selected from.
        dim: String,
    },
    /// The sizes asked for do not multiply to the size of the dimension.
    #[error("cannot split dimension {dim:?} of size {size} into {parts}: {hint}")]
    Split {
        /// The dimension to be split.
        dim: String,
        /// Its size.
        size: usize,
        /// What it should become.
        parts: String,
        /// What to do.
        hint: &'static str,
    },
    /// Labels are missing, too long or not unique; or they do not match the sizes.
    #[error("dimension {label:?} {problem}")]
    Label {
        /// The name refused.
        label: String,
        /// Why, and what to do.
        problem: &'static str,
    },
    /// The numbers of labels, sizes and strides differ.
    #[error("{labels} labels for {sizes} sizes: give one size (and stride) for each label")]
    Lengths {
        /// How many labels there are.
        labels: usize,
        /// How many sizes or strides.
        sizes: usize,
    },
    /// More dimensions than a region may have.
    #[error("{0} dimensions are over the limit of {DIMS_MAX}: flatten first")]
    TooManyDims(usize),
    /// A dimension without members.
    #[error("dimension {0:?} has size 0: give each dimension at least one member")]
    ZeroSize(String),
    /// Ranks would not fit.
    #[error("ranks would leave 0..{RANK_END}: use smaller sizes, strides or offset")]
    TooLarge,
    /// Two members would be one rank, or could not be told apart without a search.
    #[error("strides overlap: each must be longer than all shorter ones with their sizes together")]
    Overlap,
    /// Nested too deep to describe and too long to enumerate.
    #[error(
        "the region is reshaped too often to be described, and too large to be listed \
         ({0} members, limit {LIST_LEN_MAX}): slice it before reshaping it again"
    )]
    TooDeep(usize),
    /// A list longer than a region may carry.
    #[error("a list of {0} ranks is over the limit of {LIST_LEN_MAX}: use a slice")]
    ListTooLong(usize),
    /// Bytes that no region encodes to.
    #[error("not a region: {0}")]
    Malformed(&'static str),
}

/// Why a label was refused; one place for the texts.
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
