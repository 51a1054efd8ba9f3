//! Grids: rows of bytes at regular distances in two memories, such as a box of an array.

/// The maximum number of dimensions of a grid, not counting the bytes of a row.
pub const DIMS_MAX: usize = 8;
/// The maximum number of bytes that a grid spans, far below the overflow of 64-bit numbers.
const SPAN_MAX: u64 = 1 << 60;

/// One dimension: its count and its strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// The number of elements.
    pub count: u64,
    /// The distance between the first bytes of consecutive elements in the source.
    pub from_stride: u64,
    /// The same in the destination.
    pub to_stride: u64,
}

/// The mapping of bytes of one memory to bytes of another, row by row.
///
/// The bytes of a grid are numbered in the order of its rows, as if they were contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    row_len: u64,
    /// The dimensions, outermost first; empty if there is a single row.
    dims: Vec<Dim>,
    len: u64,
}

/// A row of a grid, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The offset in the source.
    pub from: u64,
    /// The offset in the destination.
    pub to: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Grid {
    /// Creates a grid with rows of `row_len` bytes; `None` if it has too many dimensions or bytes.
    pub fn new(row_len: u64, dims: &[Dim]) -> Option<Self> {
        let mut kept: Vec<Dim> = Vec::with_capacity(dims.len());
        let mut row_len = row_len;
        for dim in dims.iter().rev().filter(|dim| dim.count != 1) {
            let is_dense = kept.is_empty() && dim.from_stride == row_len;
            if is_dense && dim.to_stride == row_len {
                row_len = row_len.checked_mul(dim.count)?;
            } else {
                kept.push(*dim);
            }
        }
        kept.reverse();
        let len = kept.iter().try_fold(row_len, |len, dim| len.checked_mul(dim.count))?;
        let grid = Self { row_len, dims: kept, len };
        let longest = grid.from_len()?.max(grid.to_len()?).max(len);
        (grid.dims.len() <= DIMS_MAX && longest <= SPAN_MAX).then_some(grid)
    }

    /// The number of bytes in all rows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it contains no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all bytes are contiguous on both sides.
    pub fn is_one_row(&self) -> bool {
        self.dims.is_empty()
    }

    /// The number of bytes from the first to the last one in the source.
    pub fn from_len(&self) -> Option<u64> {
        self.span_len(|dim| dim.from_stride)
    }

    /// The number of bytes from the first to the last one in the destination.
    pub fn to_len(&self) -> Option<u64> {
        self.span_len(|dim| dim.to_stride)
    }

    fn span_len(&self, stride: impl Fn(&Dim) -> u64) -> Option<u64> {
        if self.len == 0 {
            return Some(0);
        }
        self.dims.iter().try_fold(self.row_len, |len, dim| {
            len.checked_add((dim.count - 1).checked_mul(stride(dim))?)
        })
    }

    /// The rows of `len` bytes, starting at byte `start`; the first and the last one may be
    /// partial.
    pub fn rows(&self, start: u64, len: u64) -> Rows<'_> {
        let len = len.min(self.len.saturating_sub(start));
        let mut rows = Rows { grid: self, at: [0; DIMS_MAX], from: 0, to: 0, skip: 0, left: len };
        if len == 0 {
            return rows;
        }
        let mut number = start / self.row_len;
        rows.skip = start % self.row_len;
        for (dim, at) in self.dims.iter().zip(&mut rows.at).rev() {
            *at = number % dim.count;
            number /= dim.count;
            rows.from += *at * dim.from_stride;
            rows.to += *at * dim.to_stride;
        }
        rows
    }

    /// Encodes the part of the grid that the owner of the source requires.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.row_len.to_le_bytes().to_vec();
        for dim in &self.dims {
            bytes.extend(dim.count.to_le_bytes());
            bytes.extend(dim.from_stride.to_le_bytes());
        }
        bytes
    }

    /// Decodes a grid, whose destination is contiguous.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (row_len, dims) = words.split_first()?;
        let (dims, odd) = dims.as_chunks::<2>();
        if !rest.is_empty() || !odd.is_empty() || dims.len() > DIMS_MAX {
            return None;
        }
        let mut to_stride = *row_len;
        let mut kept = Vec::with_capacity(dims.len());
        for [count, from_stride] in dims.iter().rev() {
            kept.push(Dim { count: *count, from_stride: *from_stride, to_stride });
            to_stride = to_stride.checked_mul(*count)?;
        }
        kept.reverse();
        Self::new(*row_len, &kept)
    }
}

/// The rows of a part of a grid, in order.
pub struct Rows<'a> {
    grid: &'a Grid,
    at: [u64; DIMS_MAX],
    from: u64,
    to: u64,
    /// The number of bytes to skip in the next row.
    skip: u64,
    left: u64,
}

impl Iterator for Rows<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.left == 0 {
            return None;
        }
        let len = (self.grid.row_len - self.skip).min(self.left);
        let row = Row { from: self.from + self.skip, to: self.to + self.skip, len };
        self.left -= len;
        self.skip = 0;
        for (dim, at) in self.grid.dims.iter().zip(&mut self.at).rev() {
            *at += 1;
            self.from = self.from.wrapping_add(dim.from_stride);
            self.to = self.to.wrapping_add(dim.to_stride);
            if *at < dim.count {
                break;
            }
            self.from = self.from.wrapping_sub(dim.count * dim.from_stride);
            self.to = self.to.wrapping_sub(dim.count * dim.to_stride);
            *at = 0;
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(count: u64, from_stride: u64, to_stride: u64) -> Dim {
        Dim { count, from_stride, to_stride }
    }

    #[test]
    fn rows_adjacent_on_both_sides_are_merged() {
        let grid = Grid::new(4, &[dim(2, 100, 50), dim(3, 4, 4)]).expect("it is small");
        let rows: Vec<_> = grid.rows(0, 24).collect();
        assert_eq!(rows, [Row { from: 0, to: 0, len: 12 }, Row { from: 100, to: 50, len: 12 }]);
    }

    #[test]
    fn the_parts_of_a_grid_add_up_to_the_whole() {
        let grid = Grid::new(5, &[dim(3, 70, 40), dim(4, 7, 9)]).expect("it is small");
        let bytes = |start, len| {
            let rows: Vec<_> = grid.rows(start, len).collect();
            rows.into_iter()
                .flat_map(|row| (0..row.len).map(move |at| (row.from + at, row.to + at)))
                .collect::<Vec<_>>()
        };
        let whole = bytes(0, grid.len());
        assert_eq!(whole.len(), 60);
        for step in 1..13 {
            let starts = (0..grid.len()).step_by(step);
            let parts: Vec<_> = starts.flat_map(|start| bytes(start, step as u64)).collect();
            assert_eq!(parts, whole, "in steps of {step}");
        }
        assert_eq!(grid.from_len(), Some(2 * 70 + 3 * 7 + 5));
        assert_eq!(grid.to_len(), Some(2 * 40 + 3 * 9 + 5));
    }

    #[test]
    fn the_owner_decodes_the_same_rows() {
        let grid = Grid::new(5, &[dim(3, 70, 40), dim(4, 7, 9)]).expect("it is small");
        let theirs = Grid::decode(&grid.encode()).expect("it was encoded");
        let froms =
            |grid: &Grid| grid.rows(3, 50).map(|row| (row.from, row.len)).collect::<Vec<_>>();
        assert_eq!(froms(&theirs), froms(&grid));
        assert_eq!(theirs.to_len(), Some(60));
    }

    #[test]
    fn an_empty_grid_has_no_rows() {
        let grid = Grid::new(5, &[dim(0, 70, 40)]).expect("it is small");
        assert!(grid.is_empty());
        assert_eq!(grid.rows(0, 10).count(), 0);
        assert_eq!(grid.from_len(), Some(0));
    }

    #[test]
    fn a_grid_that_overflows_or_has_too_many_dims_is_refused() {
        assert_eq!(Grid::new(8, &[dim(1 << 40, 1 << 40, 8)]), None);
        assert_eq!(Grid::new(1, &[dim(2, 3, 3); DIMS_MAX + 1]), None);
    }
}
