//! Memory that several processes map.

pub mod arena;
pub mod cells;
pub mod ledger;
pub mod shared_map;
