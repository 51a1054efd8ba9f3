//! What is taken, and how.

/// What to leave out of a snapshot, and how much of the machine to use for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Patterns of what is left out, in gitignore's language, as if each stood in a file of the
    /// root directory; they have the last word.
    pub ignore: Vec<String>,
    /// Names of files with such patterns, which are read in each directory. In a directory with
    /// several, the later ones here have the last word.
    pub ignore_files: Vec<String>,
    /// Whether to look into other file systems that are mounted inside; else they are empty
    /// directories.
    pub cross_file_systems: bool,
    /// Whether to leave out what cannot be read, and name it in
    /// [`Snapshot::skipped`](crate::Snapshot::skipped); else it is an error.
    pub skip_unreadable: bool,
    /// How many threads walk and read.
    pub threads: usize,
}

impl Default for Options {
    /// Patterns in files named `.meshignore`, and a thread for each processor.
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
