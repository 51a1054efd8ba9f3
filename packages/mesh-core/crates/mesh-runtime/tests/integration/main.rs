//! Nodes, segments, supervision and listeners, in one binary that is linked once.

mod abandoned_calls;
mod cast;
#[path = "../client_connections/mod.rs"]
mod client_connections;
mod cluster;
mod early_messages;
mod engine_death;
mod event_log;
mod events;
mod greeting;
mod host_epochs;
mod host_moves;
mod listener;
mod liveness;
mod node;
mod node_cast;
mod node_credit;
mod node_direct_receive;
mod node_pair;
mod node_segment_refs;
mod node_watch;
mod origin;
mod postponed_calls;
mod segment;
mod segment_copy;
mod segment_pool;
mod segment_stress;
mod supervise;
mod supervise_random;
