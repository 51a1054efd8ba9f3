//! The store from outside: what its callers, its disk and other processes may do to it.

mod basics;
mod budget;
mod damage;
mod folder;
mod full;
mod material;
mod model;
mod processes;
mod threads;
