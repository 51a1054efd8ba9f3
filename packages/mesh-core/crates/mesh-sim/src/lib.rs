//! A seeded world that drives the real Mesh state machines.
