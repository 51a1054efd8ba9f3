//! Registered memory, devices and frames, in one binary that is linked once.

mod arena;
mod devices;
mod frames;
mod release;
