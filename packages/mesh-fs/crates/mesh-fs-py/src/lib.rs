//! The extension module `mesh_fs._core`: Python bindings for snapshots, chunks and mounts.

use pyo3::prelude::*;

mod chunk_list;
mod errors;
mod guarded_mount;
mod memory;
mod overlay;
mod snapshot;
mod store;
mod tree;
mod view;
mod workspace;

/// Adds the classes and functions to the module `mesh_fs._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<snapshot::PyLedger>()?;
    module.add_class::<snapshot::PySnapshot>()?;
    module.add_class::<guarded_mount::PyGuardedMount>()?;
    module.add_class::<overlay::PyOverlay>()?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<tree::PyRecipe>()?;
    module.add_class::<tree::PyTree>()?;
    module.add_class::<view::PyUnpacked>()?;
    module.add_class::<view::PyView>()?;
    module.add_class::<workspace::PyWorkspace>()?;
    module.add_function(wrap_pyfunction!(guarded_mount::unmount_dead, module)?)?;
    module.add_function(wrap_pyfunction!(guarded_mount::remove_stale_mounts, module)?)
}
