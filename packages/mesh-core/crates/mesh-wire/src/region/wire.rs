//! The encoding of regions; `docs/protocol/region.md` is normative.

use super::axis::Axis;
use super::layer::Layer;
use super::{DIMS_MAX, LAYERS_MAX, LIST_LEN_MAX, Region, RegionError};
use bytes::{BufMut, BytesMut};
use std::sync::Arc;

impl Region {
    /// Appends the encoded region to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.labels.len() as u8);
        out.put_u8(self.layers.len() as u8);
        for label in &self.labels {
            out.put_u8(label.len() as u8);
            out.put_slice(label.as_bytes());
        }
        for layer in &self.layers {
            put_number(out, layer.offset as u64);
            out.put_u8(layer.axes.len() as u8);
            for axis in &layer.axes {
                put_axis(out, axis);
            }
        }
    }

    /// Decodes a region that consists of all these bytes.
    ///
    /// # Errors
    /// [`RegionError`] if the bytes are not a region. Memory use is proportional to the length of
    /// the bytes, and operations on the result cannot overflow.
    pub fn decode(bytes: &[u8]) -> Result<Self, RegionError> {
        let mut reader = Reader { rest: bytes, listed: 0 };
        let dim_count = usize::from(reader.byte()?);
        let layer_count = usize::from(reader.byte()?);
        if dim_count > DIMS_MAX {
            return Err(RegionError::TooManyDims(dim_count));
        }
        if layer_count == 0 || layer_count > LAYERS_MAX {
            return Err(RegionError::Malformed("it has no layers or too many"));
        }
        let labels = (0..dim_count).map(|_| reader.label()).collect::<Result<Vec<_>, _>>()?;
        let layers = (0..layer_count).map(|_| reader.layer()).collect::<Result<Vec<_>, _>>()?;
        if layers[0].axes.len() != dim_count {
            return Err(RegionError::Malformed("labels and dimensions do not match"));
        }
        if !reader.rest.is_empty() {
            return Err(RegionError::Malformed("bytes follow it"));
        }
        Self::assemble(labels, layers)
    }
}

fn put_axis(out: &mut BytesMut, axis: &Axis) {
    let size = axis.size() as u64;
    match axis.list() {
        None => {
            put_number(out, size << 1);
            put_signed(out, axis.stride().expect("an axis without a list has a stride"));
        }
        Some(values) => {
            put_number(out, size << 1 | 1);
            for pair in values.windows(2) {
                put_signed(out, pair[1] - pair[0]);
            }
        }
    }
}

/// Writes seven bits per byte, lowest first; the upper bit is set if another byte follows.
fn put_number(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// Moves the sign to the lowest bit, so that small numbers of either sign are short.
fn put_signed(out: &mut BytesMut, number: i64) {
    put_number(out, ((number << 1) ^ (number >> 63)) as u64);
}

struct Reader<'a> {
    rest: &'a [u8],
    /// The number of listed displacements so far.
    listed: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, RegionError> {
        let (&byte, rest) =
            self.rest.split_first().ok_or(RegionError::Malformed("it is cut off"))?;
        self.rest = rest;
        Ok(byte)
    }

    fn label(&mut self) -> Result<Arc<str>, RegionError> {
        let len = usize::from(self.byte()?);
        let (label, rest) =
            self.rest.split_at_checked(len).ok_or(RegionError::Malformed("it is cut off"))?;
        self.rest = rest;
        let label = str::from_utf8(label);
        Ok(label.map_err(|_| RegionError::Malformed("a label is not UTF-8"))?.into())
    }

    fn layer(&mut self) -> Result<Layer, RegionError> {
        let offset = self.distance()?;
        let axis_count = usize::from(self.byte()?);
        if axis_count > DIMS_MAX {
            return Err(RegionError::TooManyDims(axis_count));
        }
        let axes = (0..axis_count).map(|_| self.axis()).collect::<Result<Vec<_>, _>>()?;
        Ok(Layer { offset, axes })
    }

    fn axis(&mut self) -> Result<Axis, RegionError> {
        let word = self.number()?;
        let size = usize::try_from(word >> 1).map_err(|_| RegionError::TooLarge)?;
        if size == 0 {
            return Err(RegionError::Malformed("a dimension has size 0"));
        }
        if word & 1 == 0 {
            return Ok(Axis::even(size, self.signed()?));
        }
        self.listed = self.listed.saturating_add(size);
        if self.listed > LIST_LEN_MAX {
            return Err(RegionError::ListTooLong(self.listed));
        }
        if size - 1 > self.rest.len() {
            return Err(RegionError::Malformed("it is cut off"));
        }
        let mut values = Vec::with_capacity(size);
        values.push(0);
        for at in 1..size {
            let next: Option<i64> = self.signed()?.checked_add(values[at - 1]);
            match next {
                Some(value) if value.unsigned_abs() <= u64::from(u32::MAX) => values.push(value),
                _ => return Err(RegionError::TooLarge),
            }
        }
        Ok(Axis::listed(values).1)
    }

    fn distance(&mut self) -> Result<i64, RegionError> {
        i64::try_from(self.number()?).map_err(|_| RegionError::TooLarge)
    }

    fn signed(&mut self) -> Result<i64, RegionError> {
        let word = self.number()?;
        Ok((word >> 1) as i64 ^ -((word & 1) as i64))
    }

    fn number(&mut self) -> Result<u64, RegionError> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RegionError::Malformed("a number is longer than 64 bits"))
    }
}
