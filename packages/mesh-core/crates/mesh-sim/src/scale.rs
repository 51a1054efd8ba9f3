//! Casts over a hundred thousand actors, on real state machines.
//!
//! [`run`] builds a world of a [`Shape`]: every host has an agent, every actor a dedicated process,
//! and each process is a real [`mesh_runtime::node::Node`]. The program of the controller spawns
//! one mesh over all of them, casts to it and gathers the replies, also while actors, processes and
//! hosts die. The cost of frames is defined by [`links`]; the seed determines everything else.
//!
//! Unlike the worlds of [`crate::world`], which are small and have many kinds of faults, these are
//! large and have no faults except deaths.
//!
//! # Layout
//! - [`shape`]: size; [`links`]: latencies and costs;
//! - [`fabric`]: connections; [`process`]: processes; [`world`]: the events of both;
//! - [`program`]: the actions of the controller; [`table`]: summaries for people.

pub mod fabric;
pub mod links;
pub mod process;
pub mod program;
pub mod shape;
pub mod table;
pub mod world;

pub use program::{Cast, Memory, Report, run};
pub use shape::Shape;
