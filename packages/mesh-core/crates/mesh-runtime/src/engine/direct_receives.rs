//! Direct receive: messages from other hosts that are written to shared memory as pieces arrive.

use super::Engine;
use super::wire::lock;
use crate::hash::FastMap;
use crate::node::{BulkId, Node, ReceivedBody};
use crate::segment::{DirectReceive, ReceiveResult};
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
pub(super) struct DirectReceives(Mutex<FastMap<BulkId, Arc<DirectReceive>>>);

impl DirectReceives {
    /// Drops a message whose remaining pieces will never arrive.
    pub(super) fn abort(&self, id: BulkId) {
        // Drop it without the lock: its memory returns to the pool.
        let receive = lock(&self.0).remove(&id);
        drop(receive);
    }
}

impl Engine {
    /// Writes a piece to its message; hands the message to its readers if it is complete.
    pub(super) fn write_direct(&self, piece: Piece) {
        let Piece { id, len, at, bytes } = piece;
        let receive = match lock(&self.direct_receives.0).entry(id) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                Arc::clone(entry.insert(Arc::new(self.descriptors.begin_direct_receive(len))))
            }
        };
        if !receive.write(at, bytes) {
            return;
        }
        self.direct_receives.abort(id);
        let readers = lock(&self.shared).node.readers_of(id);
        match receive.finish(&readers) {
            ReceiveResult::Plain(bytes) => {
                self.with_node(|node| node.body_received(id, ReceivedBody::Plain(bytes)))
            }
            ReceiveResult::Shared(filled) => {
                let is_new = self.descriptors.filled(&filled);
                self.with_node(|node: &mut Node| {
                    node.announce_all(filled.segment, is_new, &readers);
                    node.body_received(id, ReceivedBody::Shared(filled.parts[0]));
                });
            }
        }
    }
}
