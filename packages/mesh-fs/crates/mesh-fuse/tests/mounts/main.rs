//! Tests with real mounts.

mod changes;
mod ending;
mod memory;
mod mounted_files;
mod reading;
mod refusals;
mod rights;
mod suspended_reads;
