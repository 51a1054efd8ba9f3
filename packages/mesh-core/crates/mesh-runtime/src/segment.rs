//! Large payloads between processes of one host, through shared memory.
//!
//! A sender copies its buffers once into a segment of its [`SegmentPool`]; the frame contains only
//! their location. Every receiver opens them through its [`SegmentCache`] as a private view: it
//! reads the sender's pages without a copy, and pages that it writes become private copies. When
//! the last receiver has released the message, the pages return to the pool and are reused while
//! they are warm, which makes reuse fast. `docs/decisions/0003-shared-segments.md` has the reasons
//! and the measurements.
//!
//! ```
//! use mesh_runtime::segment::{CacheLimits, SegmentCache, SegmentLimits, SegmentPool};
//! use mesh_wire::id::ProcId;
//!
//! let (sender, receiver) = (ProcId::new(0, 1), ProcId::new(0, 2));
//! let pool = SegmentPool::new(sender, SegmentLimits::default());
//! let filled = pool.fill(&[b"weights"], &[receiver])?;
//!
//! // The connection carries the descriptor once, and the parts with every message.
//! let cache = SegmentCache::new(CacheLimits::default());
//! cache.learn(sender, filled.segment, filled.fd.try_clone()?)?;
//! let mut views = cache.open(&filled.parts, Box::new(|| {}))?;
//! views[0][0] = b'W';
//! assert_eq!(&views[0][..], b"Weights");
//!
//! pool.release(filled.segment, filled.generation, receiver);
//! assert_eq!(pool.stats().bytes_in_use, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//! - [`pool`]: the sender's side
//! - [`cache`]: the receiver's side
//! - `message`: a received message, and its release
//! - `direct_receive`: a message that arrives in pieces from another host
//! - `slots`: the choice of a segment for the next message
//! - `memory`, `pages`, `pagemap`: memfds, mapped ranges, and the detection of written pages
//! - `copy`: large copies on two threads

pub mod cache;
mod copy;
mod direct_receive;
mod memory;
mod message;
mod pagemap;
pub(crate) mod pages;
pub mod pool;
mod slots;
mod stream_copy;

pub use cache::{CacheLimits, OpenError, Received, SegmentCache};
pub use copy::{copy_fresh, extend_fresh};
pub use direct_receive::{DirectReceive, ReceiveResult};
pub use message::{Mapping, OnDrop};
pub use pool::{FillError, Filled, SegmentLimits, SegmentPool, SegmentStats};
