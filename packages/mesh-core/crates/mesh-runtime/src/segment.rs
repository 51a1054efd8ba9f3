//! Large payloads between processes of one host, through memory that both have mapped.
//!
//! A sender copies its buffers once into a segment of its [`SegmentPool`]; the frame carries only
//! where they lie. Every receiver opens them through its [`SegmentCache`] as a private view: it
//! sees the sender's pages without a copy, and what it writes becomes its own. When the last
//! receiver has let go, the pages go back to the pool and are used again while they are warm,
//! which is where the speed comes from. `docs/decisions/0003-shared-segments.md` has the reasons
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
//! // The link carries the descriptor once and the parts with every message.
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
//! - [`pool`]: the sender's side.
//! - [`cache`]: the receiver's side.
//! - `message`: what a receiver holds, and what happens when it lets go.
//! - `landing`: a message that comes in pieces from another host.
//! - `slots`: which segment takes the next message.
//! - `memory`, `pages`, `pagemap`: memfds, mapped ranges, and which pages of one were written.
//! - `copy`: large copies on two threads.

pub mod cache;
mod copy;
mod landing;
mod memory;
mod message;
mod pagemap;
pub(crate) mod pages;
pub mod pool;
mod slots;

pub use cache::{CacheLimits, OpenError, Received, SegmentCache};
pub use copy::{copy_fresh, extend_fresh};
pub use landing::{Landfall, Landing};
pub use message::{Mapping, OnDrop};
pub use pool::{FillError, Filled, SegmentLimits, SegmentPool, SegmentStats};
