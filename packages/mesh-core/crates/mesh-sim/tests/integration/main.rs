//! The simulated network, the oracle and small worlds, in one binary that is linked once.

mod cluster;
mod net;
mod oracle;
mod worlds;
