//! A snapshot as a file system, of chunks that may still have to come.
