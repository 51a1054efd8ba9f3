//! Options of snapshots.

/// Which files a snapshot excludes, and how many threads take it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Patterns of excluded files, in the syntax of `.gitignore`.
    ///
    /// They are relative to the root directory and take precedence over the patterns of
    /// `ignore_files`.
    pub ignore: Vec<String>,
    /// Names of ignore files, which may be in any directory.
    ///
    /// If a directory has several of them, files that come later in this list take precedence.
    pub ignore_files: Vec<String>,
    /// Whether to descend into other file systems that are mounted inside the directory.
    ///
    /// If false, they appear as empty directories.
    pub cross_file_systems: bool,
    /// Whether to leave out files that cannot be read. If false, such a file is an error.
    ///
    /// [`Snapshot::skipped`](crate::Snapshot::skipped) lists the files that were left out.
    pub skip_unreadable: bool,
    /// Number of threads that list directories and read files.
    pub threads: usize,
}

impl Default for Options {
    /// Ignore files named `.meshignore`, and one thread for each processor.
    fn default() -> Self {
        Self {
            ignore: Vec::new(),
            ignore_files: vec![".meshignore".to_owned()],
            cross_file_systems: false,
            skip_unreadable: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}
