//! A mapping from row-major indices to numbers, each the sum of one displacement per axis.

use super::axis::Axis;
use super::{DIMS_MAX, LEN_MAX, RegionError};

/// Maps the indices `0..len` to distinct numbers that are not negative.
///
/// Axes are nested: the gap of each is larger than the extents of all axes with smaller gaps
/// together. Because of this, [`Layer::index_of`] computes an index without a search. Row-major
/// layouts are nested, and remain so when an axis is sliced or split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layer {
    /// The number at index 0.
    pub(super) offset: i64,
    /// The axes, outermost first; at most [`DIMS_MAX`].
    pub(super) axes: Vec<Axis>,
}

impl Layer {
    /// Creates a layer that maps each index to itself.
    pub(super) fn identity(sizes: &[usize]) -> Self {
        let mut stride = 1;
        let mut axes: Vec<Axis> = sizes
            .iter()
            .rev()
            .map(|&size| {
                let axis = Axis::even(size, stride);
                stride *= size as i64;
                axis
            })
            .collect();
        axes.reverse();
        Self { offset: 0, axes }
    }

    /// Validates the preconditions of the other functions: numbers are in `0..end`, no arithmetic
    /// can overflow, and axes are nested.
    pub(super) fn check(&self, end: i64) -> Result<(), RegionError> {
        if self.axes.len() > DIMS_MAX {
            return Err(RegionError::TooManyDims(self.axes.len()));
        }
        let (mut lowest, mut highest, mut len) = (self.offset, self.offset, 1_usize);
        for axis in &self.axes {
            let (low, high) = axis.bounds().ok_or(RegionError::TooLarge)?;
            lowest = lowest.checked_add(low).ok_or(RegionError::TooLarge)?;
            highest = highest.checked_add(high).ok_or(RegionError::TooLarge)?;
            len = len.checked_mul(axis.size()).ok_or(RegionError::TooLarge)?;
        }
        if lowest < 0 || highest >= end || len > LEN_MAX {
            return Err(RegionError::TooLarge);
        }
        let mut covered = 0;
        for (gap, at) in self.by_gap().rev() {
            if gap <= covered {
                return Err(RegionError::Overlap);
            }
            let (low, high) = bounds(&self.axes[at]);
            covered += high - low;
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.axes.iter().map(Axis::size).product()
    }

    /// The number at `index`, which must be less than the length.
    pub(super) fn at(&self, mut index: usize) -> i64 {
        let mut number = self.offset;
        for axis in self.axes.iter().rev() {
            number += axis.at(index % axis.size());
            index /= axis.size();
        }
        number
    }

    /// The index that maps to this number.
    pub(super) fn index_of(&self, number: i64) -> Option<usize> {
        let mut height = number - self.offset;
        let mut weights = [0; DIMS_MAX];
        let mut weight = 1;
        for (at, axis) in self.axes.iter().enumerate().rev() {
            height -= bounds(axis).0;
            weights[at] = weight;
            weight *= axis.size();
        }
        if height < 0 {
            return None;
        }
        // For nested axes the solution is unique: each axis, widest first, takes as much as it can.
        let mut index = 0;
        for (_, at) in self.by_gap() {
            let (position, taken) = self.axes[at].below(height);
            index += position * weights[at];
            height -= taken;
        }
        (height == 0).then_some(index)
    }

    /// Returns the same mapping with fewer axes: axes of size 1 are removed, and adjacent axes are
    /// merged if the outer one continues the inner one.
    pub(super) fn merged(&self) -> Self {
        let mut axes: Vec<Axis> = Vec::with_capacity(self.axes.len());
        for axis in self.axes.iter().filter(|axis| axis.size() > 1) {
            if let (Some(Axis::Even { size: outer, stride: far }), Axis::Even { size, stride }) =
                (axes.last(), axis)
                && *far == *size as i64 * stride
            {
                let joined = Axis::even(outer * size, *stride);
                axes.pop();
                axes.push(joined);
            } else {
                axes.push(axis.clone());
            }
        }
        Self { offset: self.offset, axes }
    }

    /// Composes `self` with `below` into one layer, if each axis of `self` stays within one axis of
    /// `below`.
    ///
    /// `below` must be [`merged`](Layer::merged), and `self` must map into its indices.
    pub(super) fn over(&self, below: &Self) -> Option<Self> {
        let start = self.offset as usize;
        let offset = below.at(start);
        if let Some(axes) = self.walked(below) {
            return Some(Self { offset, axes });
        }
        let weights = below.weights();
        let mut uses = [Use::default(); DIMS_MAX];
        let mut axes = Vec::with_capacity(self.axes.len());
        for axis in &self.axes {
            if axis.size() == 1 {
                axes.push(axis.clone());
                continue;
            }
            let at = below.axis_of(axis, &weights)?;
            let weight = weights[at] as i64;
            uses[at].add(axis, weight);
            let digit = start / weights[at] % below.axes[at].size();
            axes.push(
                uses[at]
                    .is_within(digit, &below.axes[at])
                    .then(|| through(axis, &below.axes[at], digit, weight))?,
            );
        }
        Some(Self { offset, axes })
    }

    /// Composes the axes of `self` with `below` by enumeration. This applies if at most one axis
    /// has several indices and needs no stride: it is already a list, or has two indices, which are
    /// always evenly spaced.
    fn walked(&self, below: &Self) -> Option<Vec<Axis>> {
        let mut moving = (0..self.axes.len()).filter(|&at| self.axes[at].size() > 1);
        let mut axes = self.axes.clone();
        if let Some(at) = moving.next() {
            let axis = &self.axes[at];
            if moving.next().is_some() || (axis.stride().is_some() && axis.size() > 2) {
                return None;
            }
            let numbers = (0..axis.size()).map(|i| below.at((self.offset + axis.at(i)) as usize));
            axes[at] = Axis::listed(numbers.collect()).1;
        }
        Some(axes)
    }

    /// The only axis of `self` that can change when an index moves along `walk`.
    fn axis_of(&self, walk: &Axis, weights: &[usize; DIMS_MAX]) -> Option<usize> {
        let step = walk.list().map_or(walk.gap(), |list| {
            list.iter().map(|value| value.abs()).filter(|&value| value > 0).min().unwrap_or(0)
        });
        let at = weights[..self.axes.len()].iter().position(|&weight| weight as i64 <= step)?;
        let weight = weights[at] as i64;
        let is_multiple = match walk.list() {
            Some(list) => list.iter().all(|value| value % weight == 0),
            None => step % weight == 0,
        };
        is_multiple.then_some(at)
    }

    /// The amount that one step of each axis adds to the index.
    fn weights(&self) -> [usize; DIMS_MAX] {
        let mut weights = [0; DIMS_MAX];
        let mut weight = 1;
        for (at, axis) in self.axes.iter().enumerate().rev() {
            weights[at] = weight;
            weight *= axis.size();
        }
        weights
    }

    /// Axes of size greater than 1, widest gap first.
    fn by_gap(&self) -> impl DoubleEndedIterator<Item = (i64, usize)> + use<> {
        let mut gaps = [(0, 0); DIMS_MAX];
        for (at, axis) in self.axes.iter().enumerate() {
            gaps[at] = (axis.gap(), at);
        }
        gaps[..self.axes.len()].sort_unstable_by(|one, other| other.cmp(one));
        let live = self.axes.iter().filter(|axis| axis.size() > 1).count();
        gaps.into_iter().take(live)
    }
}

/// The extent of the upper axes along one lower axis, in indices of the lower axis.
#[derive(Clone, Copy, Default)]
struct Use {
    low: i64,
    high: i64,
    count: usize,
}

impl Use {
    fn add(&mut self, walk: &Axis, weight: i64) {
        let (low, high) = bounds(walk);
        self.low += low / weight;
        self.high += high / weight;
        self.count += 1;
    }

    /// Whether the moves from `start` stay within `axis`. Only one upper axis may move along a
    /// list.
    fn is_within(&self, start: usize, axis: &Axis) -> bool {
        let start = start as i64;
        start + self.low >= 0
            && start + self.high < axis.size() as i64
            && (self.count == 1 || axis.stride().is_some())
    }
}

/// The displacements of `axis` at the indices that `walk` visits from `start` on.
fn through(walk: &Axis, axis: &Axis, start: usize, weight: i64) -> Axis {
    if let (Some(step), Some(stride)) = (walk.stride(), axis.stride()) {
        return Axis::even(walk.size(), step / weight * stride);
    }
    let index = |at| (start as i64 + walk.at(at) / weight) as usize;
    Axis::listed((0..walk.size()).map(|at| axis.at(index(at))).collect()).1
}

/// The bounds of an axis of a validated layer.
fn bounds(axis: &Axis) -> (i64, i64) {
    axis.bounds().expect("a checked layer does not overflow")
}
