//! Encoding and decoding, in one binary that is linked once.

mod golden;
mod region;
mod roundtrip;
mod seeded;
