//! Casts over a hundred thousand actors, on real state machines.
//!
//! [`run`] builds a world of a [`Shape`]: every host has an agent, every actor a process of its
//! own, and each process is a real [`mesh_runtime::node::Node`]. The program of the controller
//! spawns one mesh over all of them, casts to it and gathers the answers, also while actors,
//! processes and hosts die. What frames cost is said by [`links`]; everything else follows from
//! the seed.
//!
//! Unlike the worlds of [`crate::world`], which are small and treacherous, these are large and, but
//! for the deaths, plain.
//!
//! # Layout
//! - [`shape`]: how large; [`links`]: how fast;
//! - [`fabric`]: connections; [`site`]: processes; [`world`]: what happens to both;
//! - [`program`]: what the controller does; [`table`]: how it went, for people.

pub mod fabric;
pub mod links;
pub mod program;
pub mod shape;
pub mod site;
pub mod table;
pub mod world;

pub use program::{Cast, Memory, Report, run};
pub use shape::Shape;
