//! Conversion of data path errors to Python exceptions.

use mesh_data::DataError;
use pyo3::prelude::*;

/// Creates the public exception for an error.
pub(crate) fn raise(py: Python<'_>, error: &DataError) -> PyErr {
    let name = match error {
        DataError::Released => "RDMAReleased",
        DataError::OutOfBounds { .. } => "RDMABoundsError",
        DataError::ReadOnly => "RDMAReadOnlyError",
        DataError::Misaligned { .. } => "RDMAAlignmentError",
        DataError::PeerDied { .. } => "RDMAPeerDied",
        DataError::Deadline | DataError::Unsettled { is_cancelled: false, .. } => "RDMATimeout",
        DataError::Cancelled | DataError::Unsettled { .. } => "RDMACancelled",
        DataError::TransportUnavailable { .. }
        | DataError::Refused { .. }
        | DataError::OnDevice => "RDMATransportError",
        DataError::Full(_) | DataError::System { .. } => "RDMAError",
    };
    let make = || -> PyResult<PyErr> {
        let class = py.import("mesh_rdma._errors")?.getattr(name)?;
        Ok(PyErr::from_value(class.call1((error.to_string(),))?))
    };
    make().unwrap_or_else(|error| error)
}
