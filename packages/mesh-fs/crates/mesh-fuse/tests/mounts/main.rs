//! What is mounted for real behaves like files.

mod changes;
mod ending;
mod late;
mod memory;
mod reading;
mod refusals;
mod rights;
mod shown;
