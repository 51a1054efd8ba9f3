//! Python binding of regions: the class `mesh_core._core.Region`.

use bytes::BytesMut;
use mesh_wire::region::{Region, RegionError, Selector};
use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PySlice, PyString, PyTuple};

/// Registers the class `Region` and its unpickling function.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRegion>()?;
    module.add_function(wrap_pyfunction!(region_from_bytes, module)?)
}

/// An array with named dimensions over the ranks of a mesh.
///
/// A member has an index, which is its row-major position in the region, and a rank, which is its
/// position in the mesh that contains the region. Operations never expand a region to a list of
/// ranks, unless the caller passes one.
#[pyclass(frozen, eq, hash, module = "mesh_core._core", name = "Region")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyRegion(pub(crate) Region);

#[pymethods]
impl PyRegion {
    /// Creates a region from labels and the offset, sizes and strides of `slice`.
    #[new]
    fn new(labels: Vec<String>, slice: &Bound<'_, PyAny>) -> PyResult<Self> {
        let field = |name| slice.getattr(name);
        let sizes = field("sizes")?.extract()?;
        let strides = field("strides")?.extract()?;
        Self::strided(slice.py(), labels, sizes, strides, field("offset")?.extract()?)
    }

    /// Creates the region of a whole mesh with these dimensions, ranked in row-major order.
    #[staticmethod]
    fn row_major(py: Python<'_>, labels: Vec<String>, sizes: Vec<i64>) -> PyResult<Self> {
        wrap(py, Region::row_major(&borrowed(&labels), &counts(&sizes)))
    }

    /// Creates a strided region: the member at coordinates `c` has rank `offset + sum(c * stride)`.
    #[staticmethod]
    #[pyo3(signature = (labels, sizes, strides, offset = 0))]
    fn strided(
        py: Python<'_>,
        labels: Vec<String>,
        sizes: Vec<i64>,
        strides: Vec<i64>,
        offset: i64,
    ) -> PyResult<Self> {
        let offset = u32::try_from(offset).map_err(|_| raise(py, &RegionError::TooLarge))?;
        wrap(py, Region::strided(&borrowed(&labels), &counts(&sizes), &strides, offset))
    }

    /// Decodes the result of `encode`.
    #[staticmethod]
    fn decode(py: Python<'_>, encoded: &[u8]) -> PyResult<Self> {
        wrap(py, Region::decode(encoded))
    }

    /// Encodes the region as on the wire.
    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut bytes = BytesMut::new();
        self.0.encode(&mut bytes);
        PyBytes::new(py, &bytes)
    }

    /// The names of the dimensions, outermost first.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.labels())
    }

    /// The sizes of the dimensions, outermost first.
    #[getter]
    fn sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.sizes())
    }

    /// The distance between the ranks of neighbors in each dimension; None if it is not constant.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.0.strides().map(|(_, strides)| PyTuple::new(py, strides)).transpose()
    }

    /// The rank of the first member.
    #[getter]
    fn offset(&self) -> u32 {
        self.0.rank_at(0).expect("a region has a member")
    }

    /// Whether the index and the rank of every member are equal.
    #[getter]
    fn is_row_major_whole(&self) -> bool {
        self.0.is_row_major_whole()
    }

    /// Returns the size of one dimension.
    fn size(&self, py: Python<'_>, dim: &str) -> PyResult<usize> {
        self.0.size(dim).map_err(|error| raise(py, &error))
    }

    /// Returns the rank of the member at `index`.
    fn rank_at(&self, py: Python<'_>, index: Clamped) -> PyResult<u32> {
        let found = self.index_from_front(index).and_then(|index| self.0.rank_at(index));
        found.ok_or_else(|| self.out_of_range(py, index))
    }

    /// Returns the index of the member with this rank, or None if the region does not contain it.
    fn index_of(&self, rank: Clamped) -> Option<usize> {
        self.0.index_of(u32::try_from(rank.0).ok()?)
    }

    /// Returns the coordinates of the member at `index`, one for each dimension.
    fn coordinates<'py>(&self, py: Python<'py>, index: Clamped) -> PyResult<Bound<'py, PyTuple>> {
        let found = self.index_from_front(index).and_then(|index| self.0.coordinates(index));
        PyTuple::new(py, found.ok_or_else(|| self.out_of_range(py, index))?)
    }

    /// Returns the ranks of all members in index order.
    fn ranks(&self) -> Vec<u32> {
        self.0.ranks().collect()
    }

    /// Returns the region that contains only the member at `index` and has no dimensions.
    fn member(&self, py: Python<'_>, index: Clamped) -> PyResult<Self> {
        let found = self.index_from_front(index).and_then(|index| self.0.member(index));
        found.map(Self).ok_or_else(|| self.out_of_range(py, index))
    }

    /// Selects a part of some dimensions. An int removes the dimension; a slice or a list of ints
    /// keeps it.
    #[pyo3(signature = (**dims))]
    fn select(&self, py: Python<'_>, dims: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let Some(dims) = dims else { return Ok(self.clone()) };
        let mut selectors = Vec::with_capacity(dims.len());
        for (dim, selector) in dims.iter() {
            let dim = dim.cast_into::<PyString>()?;
            let selector = selector_of(&dim, &selector)?;
            selectors.push((dim, selector));
        }
        let mut pairs = Vec::with_capacity(selectors.len());
        for (dim, selector) in &selectors {
            pairs.push((dim.to_str()?, selector));
        }
        wrap(py, self.0.slice(pairs))
    }

    /// Splits dimensions into several each: `split(gpus=("dp", "tp"), tp=2)`.
    ///
    /// One size of each split may be omitted.
    #[pyo3(signature = (**dims))]
    fn split(&self, py: Python<'_>, dims: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let Some(dims) = dims else { return Ok(self.clone()) };
        let mut splits: Vec<(String, Vec<String>)> = Vec::new();
        let mut sizes: Vec<(String, i64)> = Vec::new();
        for (name, value) in dims.iter() {
            let name: String = name.extract()?;
            if !value.is_instance_of::<PyBool>()
                && let Ok(size) = value.extract()
            {
                sizes.push((name, size));
            } else {
                splits.push((name, part_labels(py, &value)?));
            }
        }
        let mut region = self.0.clone();
        for (dim, labels) in &splits {
            let mut parts = Vec::with_capacity(labels.len());
            for label in labels {
                let given = sizes.iter().position(|size| size.0 == *label);
                let size = given.map(|at| sizes.swap_remove(at).1);
                // A negative size is invalid in the same way as 0.
                parts.push((label.as_str(), size.map(|size| usize::try_from(size).unwrap_or(0))));
            }
            region = region.split(dim, &parts).map_err(|error| raise(py, &error))?;
        }
        match sizes.first() {
            None => Ok(Self(region)),
            Some((label, _)) => {
                let message = format!(
                    "a size is given for {label:?}, and no dimension is split into it: \
                     name it in a split, as in split(old=({label:?}, ...))"
                );
                Err(typed(py, "SplitError", &message))
            }
        }
    }

    /// Merges all dimensions into one.
    fn flatten(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        wrap(py, self.0.flatten(name))
    }

    /// Renames dimensions: `rename(old="new")`.
    #[pyo3(signature = (**dims))]
    fn rename(&self, py: Python<'_>, dims: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let Some(dims) = dims else { return Ok(self.clone()) };
        let names: Vec<(String, String)> = dims
            .iter()
            .map(|(old, new)| Ok((old.extract()?, new.extract()?)))
            .collect::<PyResult<_>>()?;
        let pairs = names.iter().map(|(old, new)| (old.as_str(), new.as_str()));
        wrap(py, self.0.rename(pairs))
    }

    /// The dimensions, as an `Extent`.
    #[getter]
    fn extent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static EXTENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let extent = EXTENT.import(py, "mesh_core._shapes.shape", "Extent")?;
        extent.call1((self.labels(py)?, self.sizes(py)?))
    }

    /// Returns the position in the region of a rank of the mesh, as a `Point`.
    fn point_of_base_rank<'py>(
        &self,
        py: Python<'py>,
        rank: Clamped,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(index) = self.index_of(rank) else {
            let message =
                format!("rank {} is not in {}: use one of its ranks", rank.0, self.__repr__());
            return Err(typed(py, "MeshIndexError", &message));
        };
        py.import("mesh_core._shapes.shape")?.getattr("Point")?.call1((index, self.extent(py)?))
    }

    /// Returns the offset, sizes and strides as a `Slice`.
    fn slice<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some((offset, strides)) = self.0.strides() else {
            let message = "a flattened or listed region has no constant strides: use its ranks";
            return Err(typed(py, "ShapeError", message));
        };
        let make = py.import("mesh_core._shapes.strided")?.getattr("slice_of")?;
        make.call1((offset, self.sizes(py)?, PyTuple::new(py, strides)?))
    }

    /// Returns this region as a `Shape`.
    fn as_shape<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("mesh_core._shapes.strided")?.getattr("shape_of")?.call1((slf,))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __iter__(slf: Bound<'_, Self>) -> RankIterator {
        RankIterator { end: slf.get().0.len(), next: 0.into(), region: slf.unbind() }
    }

    fn __contains__(&self, rank: Clamped) -> bool {
        self.index_of(rank).is_some()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let few = self.0.ranks().take(8).map(|rank| rank.to_string()).collect::<Vec<_>>();
        let more = if self.0.len() > few.len() { ", ..." } else { "" };
        format!("Region({}, ranks=[{}{more}])", self.0, few.join(", "))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let py = slf.py();
        let rebuild = py.import("mesh_core._core")?.getattr("region_from_bytes")?;
        Ok((rebuild, (slf.get().encode(py),)))
    }
}

impl PyRegion {
    fn index_from_front(&self, index: Clamped) -> Option<usize> {
        let index = index.0;
        let from_front = if index < 0 { index + self.0.len() as i64 } else { index };
        usize::try_from(from_front).ok()
    }

    fn out_of_range(&self, py: Python<'_>, index: Clamped) -> PyErr {
        let (index, len) = (index.0, self.0.len());
        let message = format!(
            "index {index} is out of range for {} of {len} members: use -{len} to {}",
            self.0,
            len - 1
        );
        typed(py, "MeshIndexError", &message)
    }
}

/// An iterator over the ranks of a region.
#[pyclass(frozen, module = "mesh_core._core")]
struct RankIterator {
    region: Py<PyRegion>,
    next: std::sync::atomic::AtomicUsize,
    end: usize,
}

#[pymethods]
impl RankIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<u32> {
        let index = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.region.get().0.rank_at(index)
    }

    fn __length_hint__(&self) -> usize {
        self.end.saturating_sub(self.next.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// Decodes a region; pickled regions refer to this function.
#[pyfunction]
fn region_from_bytes(py: Python<'_>, encoded: &[u8]) -> PyResult<PyRegion> {
    PyRegion::decode(py, encoded)
}

/// Converts one keyword argument of `select`.
fn selector_of(dim: &Bound<'_, PyString>, value: &Bound<'_, PyAny>) -> PyResult<Selector> {
    if let Some(index) = integer(value)? {
        return Ok(Selector::Index(index));
    }
    let expected =
        |value: &Bound<'_, PyAny>| integer(value)?.ok_or_else(|| bad_selector(dim, value));
    if let Ok(slice) = value.cast::<PySlice>() {
        let bound = |name: &Bound<'_, PyString>| -> PyResult<Option<i64>> {
            let bound = slice.getattr(name)?;
            if bound.is_none() { Ok(None) } else { expected(&bound).map(Some) }
        };
        let py = value.py();
        let (start, stop) = (bound(intern!(py, "start"))?, bound(intern!(py, "stop"))?);
        let step = bound(intern!(py, "step"))?.unwrap_or(1);
        return Ok(Selector::Range { start, stop, step });
    }
    match value.try_iter() {
        Ok(items) if !value.is_instance_of::<PyString>() => {
            items.map(|item| expected(&item?)).collect::<PyResult<_>>().map(Selector::List)
        }
        _ => Err(bad_selector(dim, value)),
    }
}

/// Returns `value` as an integer, or `None` if it is not one.
fn integer(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match value.extract::<Clamped>() {
        // Booleans are rejected as indexes: a list of them is probably meant as a mask.
        Ok(_) if value.is_instance_of::<PyBool>() => Ok(None),
        Ok(index) => Ok(Some(index.0)),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An index or rank, clamped to 64 bits: a larger value is out of range in any case.
#[derive(Clone, Copy)]
struct Clamped(i64);

impl FromPyObject<'_, '_> for Clamped {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match value.extract::<i64>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
                Ok(Self(if value.lt(0)? { i64::MIN } else { i64::MAX }))
            }
            found => found.map(Self),
        }
    }
}

fn bad_selector(dim: &Bound<'_, PyString>, value: &Bound<'_, PyAny>) -> PyErr {
    let what = value.repr().map_or_else(|_| "that".to_owned(), |text| text.to_string());
    let message = format!(
        "cannot select {what} of dimension \"{dim}\": use an int, a slice or a list of ints"
    );
    typed(dim.py(), "SelectorError", &message)
}

/// The labels of the dimensions that one dimension is split into.
fn part_labels(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    value.extract::<Vec<String>>().map_err(|_| {
        let what = value.repr().map_or_else(|_| "that".to_owned(), |text| text.to_string());
        let message = format!(
            "cannot split into {what}: give labels, as in split(old=(\"a\", \"b\")), \
             and sizes, as in a=2"
        );
        typed(py, "SplitError", &message)
    })
}

fn borrowed(labels: &[String]) -> Vec<&str> {
    labels.iter().map(String::as_str).collect()
}

/// Converts sizes for [`Region`]; a negative size is as invalid as 0.
fn counts(sizes: &[i64]) -> Vec<usize> {
    sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect()
}

fn wrap(py: Python<'_>, region: Result<Region, RegionError>) -> PyResult<PyRegion> {
    region.map(PyRegion).map_err(|error| raise(py, &error))
}

/// Converts `error` to the corresponding Python exception.
pub(crate) fn raise(py: Python<'_>, error: &RegionError) -> PyErr {
    let class = match error {
        RegionError::UnknownDim { .. } => "UnknownDim",
        RegionError::OutOfRange { .. } => "MeshIndexError",
        RegionError::Split { .. } => "SplitError",
        _ => "ShapeError",
    };
    typed(py, class, &error.to_string())
}

/// Creates an exception of a class of `mesh_core._shapes.shape_errors`.
fn typed(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let raised = py
        .import("mesh_core._shapes.shape_errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message,)));
    raised.map_or_else(|error| error, PyErr::from_value)
}
