//! Direct receive: messages from other hosts that are written to shared memory as pieces arrive.

use super::Engine;
use super::wire::lock;
use crate::hash::FastMap;
use crate::node::{BulkId, Landed, Node};
use crate::segment::{Landfall, Landing};
use bytes::Bytes;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

/// Some bytes of a message that has `len` bytes in total.
pub(super) struct Piece {
    pub(super) id: BulkId,
    pub(super) len: usize,
    pub(super) at: usize,
    pub(super) bytes: Bytes,
}

/// Messages that are not complete yet.
#[derive(Default)]
pub(super) struct Landings(Mutex<FastMap<BulkId, Arc<Landing>>>);

impl Landings {
    /// Drops a message whose remaining pieces will never arrive.
    pub(super) fn forsake(&self, id: BulkId) {
        // Drop it without the lock: its memory returns to the pool.
        let landing = lock(&self.0).remove(&id);
        drop(landing);
    }
}

impl Engine {
    /// Writes a piece to its message; hands the message to its readers if it is complete.
    pub(super) fn land(&self, piece: Piece) {
        let Piece { id, len, at, bytes } = piece;
        let landing = match lock(&self.landings.0).entry(id) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => Arc::clone(entry.insert(Arc::new(self.descriptors.land(len)))),
        };
        if !landing.write(at, bytes) {
            return;
        }
        self.landings.forsake(id);
        let readers = lock(&self.shared).node.readers_of(id);
        match landing.finish(&readers) {
            Landfall::Plain(bytes) => self.with_node(|node| node.landed(id, Landed::Plain(bytes))),
            Landfall::Shared(filled) => {
                let is_new = self.descriptors.filled(&filled);
                self.with_node(|node: &mut Node| {
                    node.announce_all(filled.segment, is_new, &readers);
                    node.landed(id, Landed::Shared(filled.parts[0]));
                });
            }
        }
    }
}
