//! Tests of the public interface of the store: against its callers, its disk and other processes.

mod basics;
mod budget;
mod damage;
mod folder;
mod full;
mod material;
mod model;
mod processes;
mod threads;
