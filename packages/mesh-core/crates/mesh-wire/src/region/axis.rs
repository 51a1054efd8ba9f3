//! One axis of a layer, which maps indices to displacements and back.

use std::sync::Arc;

/// A sequence of `size` displacements; the first is always 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Axis {
    /// Displacements at multiples of `stride`; a single one has stride 0, so that equal axes
    /// compare equal.
    Even { size: usize, stride: i64 },
    /// Displacements without a constant stride, listed individually.
    Listed(Arc<Listed>),
}

/// At least three distinct displacements that are not evenly spaced.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Listed {
    values: Vec<i64>,
    /// Positions in `values`, sorted by value; used for the inverse mapping.
    ascending: Vec<u32>,
    /// The minimum distance of two values; 0 if a value occurs twice.
    gap: i64,
}

impl Axis {
    /// Creates an axis with at least one displacement.
    pub(super) fn even(size: usize, stride: i64) -> Self {
        assert!(size > 0, "an axis has at least one index");
        Self::Even { size, stride: if size == 1 { 0 } else { stride } }
    }

    /// Returns the first of `values`, and an axis of their distances from it.
    pub(super) fn listed(mut values: Vec<i64>) -> (i64, Self) {
        let first = *values.first().expect("an axis has at least one index");
        for value in &mut values {
            *value -= first;
        }
        let stride = values.get(1).copied().unwrap_or(0);
        if values.windows(2).all(|pair| pair[1] - pair[0] == stride) {
            return (first, Self::even(values.len(), stride));
        }
        let mut ascending: Vec<u32> = (0..values.len() as u32).collect();
        ascending.sort_unstable_by_key(|&at| values[at as usize]);
        let distances = ascending.windows(2).map(|w| values[w[1] as usize] - values[w[0] as usize]);
        let gap = distances.min().unwrap_or(0);
        (first, Self::Listed(Arc::new(Listed { values, ascending, gap })))
    }

    pub(super) fn size(&self) -> usize {
        match self {
            Self::Even { size, .. } => *size,
            Self::Listed(list) => list.values.len(),
        }
    }

    /// The displacement at `index`, which must be less than the size.
    pub(super) fn at(&self, index: usize) -> i64 {
        match self {
            Self::Even { stride, .. } => index as i64 * stride,
            Self::Listed(list) => list.values[index],
        }
    }

    /// The stride, if it is constant.
    pub(super) fn stride(&self) -> Option<i64> {
        match self {
            Self::Even { stride, .. } => Some(*stride),
            Self::Listed(_) => None,
        }
    }

    /// The displacements, if they have no constant stride.
    pub(super) fn list(&self) -> Option<&[i64]> {
        match self {
            Self::Even { .. } => None,
            Self::Listed(list) => Some(&list.values),
        }
    }

    /// The lowest and the highest displacement; `None` if they overflow.
    pub(super) fn bounds(&self) -> Option<(i64, i64)> {
        let last = match self {
            Self::Even { size, stride } => i64::try_from(*size - 1).ok()?.checked_mul(*stride)?,
            Self::Listed(list) => return Some((list.lowest(), list.highest())),
        };
        Some((last.min(0), last.max(0)))
    }

    /// The minimum distance of two displacements; 0 if the axis has only one.
    pub(super) fn gap(&self) -> i64 {
        match self {
            Self::Even { stride, .. } => stride.abs(),
            Self::Listed(list) => list.gap,
        }
    }

    /// Finds the highest displacement that is at most `height` above the lowest. Returns its index
    /// and its distance from the lowest.
    pub(super) fn below(&self, height: i64) -> (usize, i64) {
        match self {
            Self::Even { size: 1, .. } => (0, 0),
            Self::Even { size, stride } => {
                let step = stride.abs();
                let steps = ((height / step) as usize).min(size - 1);
                let index = if *stride > 0 { steps } else { size - 1 - steps };
                (index, steps as i64 * step)
            }
            Self::Listed(list) => {
                let lowest = list.lowest();
                let above = list
                    .ascending
                    .partition_point(|&at| list.values[at as usize] - lowest <= height);
                // At least the lowest displacement qualifies, because `height` is not negative.
                let at = list.ascending[above.max(1) - 1] as usize;
                (at, list.values[at] - lowest)
            }
        }
    }
}

impl Listed {
    fn lowest(&self) -> i64 {
        self.values[self.ascending[0] as usize]
    }

    fn highest(&self) -> i64 {
        self.values[self.ascending[self.ascending.len() - 1] as usize]
    }
}
