//! Operations that derive regions: select, split, flatten and rename.

use super::axis::Axis;
use super::layer::Layer;
use super::{LAYERS_MAX, LIST_LEN_MAX, Region, RegionError, Selector, check_labels};
use std::sync::Arc;

impl Region {
    /// Selects a part of one dimension.
    ///
    /// # Errors
    /// [`RegionError`] if the dimension or an index does not exist, or if the selection is empty.
    pub fn select(&self, dim: &str, selector: &Selector) -> Result<Self, RegionError> {
        self.slice([(dim, selector)])
    }

    /// Selects a part of several dimensions.
    ///
    /// # Errors
    /// See [`Region::select`].
    pub fn slice<'a>(
        &self,
        selectors: impl IntoIterator<Item = (&'a str, &'a Selector)>,
    ) -> Result<Self, RegionError> {
        let mut region = self.clone();
        for (dim, selector) in selectors {
            let at = region.place(dim)?;
            region.select_at(at, selector)?;
        }
        region.join_layers();
        Ok(region)
    }

    /// The region that contains only the member at `index`, without dimensions; `None` if `index`
    /// is out of range.
    pub fn member(&self, index: usize) -> Option<Self> {
        let offset = i64::from(self.rank_at(index)?);
        Some(Self { labels: Vec::new(), layers: vec![Layer { offset, axes: Vec::new() }] })
    }

    /// Replaces a dimension with several, outermost first, at the same position. One size may be
    /// omitted.
    ///
    /// # Errors
    /// [`RegionError`] if the product of the sizes is not the size of the dimension, or if a label
    /// is invalid or used twice.
    pub fn split(&self, dim: &str, parts: &[(&str, Option<usize>)]) -> Result<Self, RegionError> {
        let at = self.place(dim)?;
        let sizes = self.part_sizes(at, parts)?;
        let mut labels = self.labels.clone();
        labels.splice(at..=at, parts.iter().map(|(label, _)| Arc::from(*label)));
        check_labels(&labels)?;
        let mut region = self.clone();
        region.labels = labels;
        if let Axis::Even { stride, .. } = region.top().axes[at] {
            let mut far = stride;
            let mut cut: Vec<Axis> = Vec::with_capacity(sizes.len());
            for &size in sizes.iter().rev() {
                cut.push(Axis::even(size, far));
                far *= size as i64;
            }
            region.layers[0].axes.splice(at..=at, cut.into_iter().rev());
        } else {
            let mut all: Vec<usize> = self.sizes().collect();
            all.splice(at..=at, sizes);
            region.cover(&all)?;
        }
        region.join_layers();
        Ok(region)
    }

    /// Merges all dimensions into one.
    ///
    /// # Errors
    /// [`RegionError`] if the label exceeds a limit.
    pub fn flatten(&self, label: &str) -> Result<Self, RegionError> {
        let labels = vec![Arc::from(label)];
        check_labels(&labels)?;
        let mut region = self.clone();
        region.labels = labels;
        let mut merged = region.top().merged();
        if merged.axes.is_empty() {
            merged.axes.push(Axis::even(1, 0));
        }
        if merged.axes.len() == 1 {
            region.layers[0] = merged;
        } else {
            region.cover(&[self.len()])?;
        }
        region.join_layers();
        Ok(region)
    }

    /// Renames dimensions simultaneously, so that labels can be swapped.
    ///
    /// # Errors
    /// [`RegionError`] if a dimension does not exist, or if labels are not unique or exceed a
    /// limit.
    pub fn rename<'a>(
        &self,
        names: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, RegionError> {
        let mut region = self.clone();
        for (old, new) in names {
            region.labels[self.place(old)?] = new.into();
        }
        check_labels(&region.labels)?;
        Ok(region)
    }

    fn select_at(&mut self, at: usize, selector: &Selector) -> Result<(), RegionError> {
        let size = self.top().axes[at].size();
        match selector {
            Selector::Index(index) => {
                let index = self.resolve(at, *index)?;
                let axis = self.layers[0].axes.remove(at);
                self.layers[0].offset += axis.at(index);
                self.labels.remove(at);
            }
            Selector::Range { start, stop, step } => {
                let label = || self.labels[at].to_string();
                if *step == 0 {
                    return Err(RegionError::ZeroStep { dim: label() });
                }
                let Some((first, count)) = walk(size, *start, *stop, *step) else {
                    return Err(RegionError::Empty { dim: label(), size });
                };
                self.keep_range(at, first, count, *step);
            }
            Selector::List(list) => {
                if list.len() > LIST_LEN_MAX {
                    return Err(RegionError::ListTooLong(list.len()));
                }
                self.keep_listed(at, list)?;
            }
        }
        Ok(())
    }

    fn keep_listed(&mut self, at: usize, list: &[i64]) -> Result<(), RegionError> {
        let size = self.top().axes[at].size();
        let indices =
            list.iter().map(|&index| self.resolve(at, index)).collect::<Result<Vec<_>, _>>()?;
        let label = || self.labels[at].to_string();
        if indices.is_empty() {
            return Err(RegionError::Empty { dim: label(), size });
        }
        let mut sorted = indices.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RegionError::Repeated { dim: label(), index: pair[0] as i64 });
        }
        self.keep(at, indices.into_iter());
        let listed = self.listed_len();
        if listed > LIST_LEN_MAX {
            return Err(RegionError::ListTooLong(listed));
        }
        Ok(())
    }

    /// Selects `count` indices of a dimension at distances of `step`; all are in range.
    fn keep_range(&mut self, at: usize, first: usize, count: usize, step: i64) {
        // For a single index the step is irrelevant, and it could be any number.
        let step = if count == 1 { 0 } else { step };
        let layer = &mut self.layers[0];
        if let Axis::Even { stride, .. } = layer.axes[at] {
            layer.offset += first as i64 * stride;
            layer.axes[at] = Axis::even(count, stride * step);
        } else {
            self.keep(at, (0..count).map(|i| (first as i64 + i as i64 * step) as usize));
        }
    }

    /// Selects these indices of a dimension, which are distinct and in range.
    fn keep(&mut self, at: usize, indices: impl Iterator<Item = usize>) {
        let layer = &mut self.layers[0];
        let axis = &layer.axes[at];
        let (first, kept) = Axis::listed(indices.map(|index| axis.at(index)).collect());
        layer.offset += first;
        layer.axes[at] = kept;
    }

    /// Converts an index to one that counts from the front.
    fn resolve(&self, at: usize, index: i64) -> Result<usize, RegionError> {
        let size = self.top().axes[at].size();
        let from_front = if index < 0 { index.saturating_add(size as i64) } else { index };
        match usize::try_from(from_front) {
            Ok(found) if found < size => Ok(found),
            _ => Err(RegionError::OutOfRange { dim: self.labels[at].to_string(), index, size }),
        }
    }

    /// Adds a layer with new dimensions and the same number of members at the top.
    fn cover(&mut self, sizes: &[usize]) -> Result<(), RegionError> {
        let len = self.len();
        let top = Layer::identity(sizes);
        assert_eq!(top.len(), len, "new dimensions have the same members");
        if self.layers.len() == LAYERS_MAX {
            if len > LIST_LEN_MAX {
                return Err(RegionError::TooDeep(len));
            }
            let (offset, axis) = Axis::listed(self.ranks().map(i64::from).collect());
            self.layers = vec![Layer { offset, axes: vec![axis] }];
        }
        self.layers[0] = self.layers[0].merged();
        self.layers.insert(0, top);
        Ok(())
    }

    /// Merges the two upper layers as long as the result can be described.
    pub(super) fn join_layers(&mut self) {
        while let [top, below, ..] = self.layers.as_slice()
            && let Some(joined) = top.over(below)
        {
            self.layers.splice(0..2, [joined]);
        }
    }

    /// The number of listed ranks, over all layers.
    pub(super) fn listed_len(&self) -> usize {
        self.layers
            .iter()
            .flat_map(|layer| &layer.axes)
            .filter_map(Axis::list)
            .map(<[_]>::len)
            .sum()
    }

    fn part_sizes(
        &self,
        at: usize,
        parts: &[(&str, Option<usize>)],
    ) -> Result<Vec<usize>, RegionError> {
        let size = self.top().axes[at].size();
        let fail = |hint| {
            let part = |(label, size): &(&str, Option<usize>)| match size {
                Some(size) => format!("{label}={size}"),
                None => format!("{label}=?"),
            };
            let parts = parts.iter().map(part).collect::<Vec<_>>().join(", ");
            let dim = self.labels[at].to_string();
            Err(RegionError::Split { dim, size, parts: format!("({parts})"), hint })
        };
        let known = parts.iter().filter_map(|(_, size)| *size);
        let Some(known) = known.clone().try_fold(1_usize, |all, size| all.checked_mul(size)) else {
            return fail("the sizes multiply to more than a region can have");
        };
        let open = parts.iter().filter(|(_, size)| size.is_none()).count();
        if open > 1 {
            return fail("give all sizes but one");
        }
        if known == 0 || !size.is_multiple_of(known) {
            return fail("the sizes given must divide it");
        }
        if open == 0 && known != size {
            return fail("the sizes given must multiply to it; leave one out to have it computed");
        }
        Ok(parts.iter().map(|(_, part)| part.unwrap_or(size / known)).collect())
    }
}

/// The first index of a Python slice and the number of its indices; `None` if it is empty.
fn walk(size: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Option<(usize, usize)> {
    let size = size as i128;
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let place = |bound: i64| {
        let bound = i128::from(bound);
        (if bound < 0 { bound + size } else { bound }).clamp(low, high)
    };
    let (from, to) = if step > 0 { (low, high) } else { (high, low) };
    let (first, end) = (start.map_or(from, place), stop.map_or(to, place));
    let step = i128::from(step);
    let count = (end - first + step - step.signum()) / step;
    (count > 0).then_some((first as usize, count as usize))
}
