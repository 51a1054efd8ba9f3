//! Python modules that a workspace has written or removed.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::directory::Directory;
use crate::unpack::joined;

/// Python modules whose compiled files are stale.
///
/// Python compares compiled files with their source by whole seconds and size only, and would
/// therefore use a stale one.
#[derive(Default)]
pub(crate) struct CompiledModules(BTreeMap<Vec<u8>, HashSet<Vec<u8>>>);

impl CompiledModules {
    /// Adds a file, if it is a module.
    pub(crate) fn add(&mut self, name: &[u8]) {
        let path = Path::new(OsStr::from_bytes(name));
        if path.extension() == Some(OsStr::new("py"))
            && let (Some(directory), Some(stem)) = (path.parent(), path.file_stem())
        {
            let directory = joined(directory.as_os_str().as_bytes(), b"__pycache__");
            self.0.entry(directory).or_default().insert(stem.as_bytes().to_vec());
        }
    }

    /// Removes the compiled files.
    pub(crate) fn forget(self, root: &Directory) {
        for (path, stems) in self.0 {
            let Ok(directory) = root.beneath(&path) else { continue };
            for name in directory.names().unwrap_or_default() {
                let name = name.to_bytes();
                // Example: `module.cpython-312.opt-1.pyc`. Module names contain no dots.
                let end = name.iter().position(|byte| *byte == b'.').unwrap_or(0);
                if name.ends_with(b".pyc") && stems.contains(&name[..end]) {
                    let _ = directory.remove_file(name);
                }
            }
            if let Ok((above, name)) = root.parent_of(&path) {
                let _ = above.remove_directory(name);
            }
        }
    }
}
