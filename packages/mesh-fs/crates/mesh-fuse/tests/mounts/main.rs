//! Tests with real mounts.

mod changes;
mod ending;
mod late;
mod memory;
mod reading;
mod refusals;
mod rights;
mod shown;
