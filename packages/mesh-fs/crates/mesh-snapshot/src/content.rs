//! Contents of files, read and split into chunks by a pool of threads.

pub(crate) mod chunker;
pub(crate) mod file_reader;
pub(crate) mod files;
pub(crate) mod open_files;
pub(crate) mod reader_pool;
pub(crate) mod source;
