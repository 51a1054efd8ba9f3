//! Outgoing messages. Each queue waits for capacity at its receiver and preserves order.

use super::{Context, Process, Wait};
use crate::message::{Task, Work};
use bytes::Bytes;
use mesh_runtime::node::{CallSpec, SendError, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::PortId;
use std::sync::Arc;
use std::time::Duration;

/// The content of an [`OutgoingMessage`].
#[derive(Debug)]
pub(super) enum Payload {
    /// A [`Task`], which gets its sequence number when it is sent.
    Task { line: u64, tag: u64, work: Work },
    /// Fixed bytes; the first `meta_len` are metadata.
    Fixed { meta_len: u16, tail: Bytes },
}

/// A message that has not been sent.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub kind: Kind,
    pub port: PortId,
    pub targets: Arc<[Target]>,
    pub payload: Payload,
    pub window: u32,
    pub timeout: Option<Duration>,
    /// How the replies are handled; `None` for a one-way message.
    pub wait: Option<Wait>,
    /// Whether replies are taken as they arrive.
    pub is_stream: bool,
    /// Why the last attempt to send the message was refused.
    pub refused: Option<SendError>,
}

impl OutgoingMessage {
    /// Creates a call without a limit on outstanding messages.
    pub(super) fn new(port: PortId, targets: Arc<[Target]>, tail: Bytes, wait: Wait) -> Self {
        Self {
            kind: Kind::Call,
            port,
            targets,
            payload: Payload::Fixed { meta_len: 0, tail },
            window: u32::MAX,
            timeout: None,
            wait: Some(wait),
            is_stream: false,
            refused: None,
        }
    }

    /// The queue of the message. Agent requests and spawns share one, so that neither overtakes the
    /// other.
    fn queue(&self) -> PortId {
        if self.kind == Kind::Spawn { PortId::AGENT } else { self.port }
    }
}

impl Process {
    /// Sends a message, now or when there is capacity. Returns the port of the replies if it was
    /// sent.
    pub(super) fn submit(
        &mut self,
        message: OutgoingMessage,
        context: &mut Context<'_>,
    ) -> Option<PortId> {
        let queue = message.queue();
        if let Some(waiting) = self.outbox.get_mut(&queue) {
            waiting.push_back(message);
            return None;
        }
        match self.post(message, context) {
            Ok(reply_port) => reply_port,
            Err(message) => {
                self.outbox.entry(queue).or_default().push_back(*message);
                None
            }
        }
    }

    /// Sends queued messages as far as their receivers have capacity.
    pub(super) fn send_waiting(&mut self, context: &mut Context<'_>) {
        let queues: Vec<PortId> = self.outbox.keys().copied().collect();
        for queue in queues {
            while let Some(message) = self.outbox.get_mut(&queue).and_then(|all| all.pop_front()) {
                if let Err(message) = self.post(message, context) {
                    let waiting = self.outbox.get_mut(&queue).expect("it was there just now");
                    waiting.push_front(*message);
                    break;
                }
            }
            if self.outbox.get(&queue).is_some_and(|waiting| waiting.is_empty()) {
                self.outbox.remove(&queue);
            }
        }
    }

    /// Passes a message to the node. Returns the message if the receiver has no capacity.
    fn post(
        &mut self,
        message: OutgoingMessage,
        context: &mut Context<'_>,
    ) -> Result<Option<PortId>, Box<OutgoingMessage>> {
        let task = self.task_of(&message);
        let (meta_len, tail) = match (&message.payload, &task) {
            (Payload::Fixed { meta_len, tail }, _) => (*meta_len, tail.clone()),
            (_, Some(task)) => (0, task.encode()),
            (_, None) => (0, Bytes::new()),
        };
        let spec = CallSpec {
            kind: message.kind,
            targets: Arc::clone(&message.targets),
            port: message.port,
            meta_len,
            part_count: 0,
            tail,
            window: message.window,
            timeout: message.timeout,
        };
        self.node.advance(context.now);
        let sent = match message.wait {
            // Half of the calls come from event loops.
            Some(_) if context.rng.below(2) == 0 => self.node.call_or_postpone(&spec).map(Some),
            Some(_) => self.node.call(&spec).map(Some),
            None => self.node.send(&spec).map(|()| None),
        };
        let reply_port = match sent {
            Ok(reply_port) => reply_port,
            Err(why) => return Err(Box::new(OutgoingMessage { refused: Some(why), ..message })),
        };
        if let (Payload::Task { line, .. }, Some(task)) = (&message.payload, &task) {
            self.serials.insert(*line, task.serial);
            self.record_sent(&message, task, context);
        }
        if let (Some(reply_port), Some(wait)) = (reply_port, message.wait) {
            if message.is_stream {
                self.node.set_stream(reply_port);
            }
            self.waits.insert(reply_port, wait);
        }
        Ok(reply_port)
    }

    fn task_of(&self, message: &OutgoingMessage) -> Option<Task> {
        match message.payload {
            Payload::Task { line, tag, work } => {
                let serial = self.serials.get(&line).copied().unwrap_or(0) + 1;
                Some(Task { sender: self.life, line, serial, tag, work })
            }
            Payload::Fixed { .. } => None,
        }
    }

    fn record_sent(&self, message: &OutgoingMessage, task: &Task, context: &mut Context<'_>) {
        let directory = &*context.directory;
        let life = |target: &Target| directory.life(target.proc).unwrap_or(u32::MAX);
        let targets = message.targets.iter();
        let targets = targets.map(|target| (target.rank, target.proc, life(target)));
        if message.wait.is_some() {
            context.oracle.sent_call(task.tag, self.life, targets, context.now);
        } else {
            context.oracle.sent_one_way(task, message.port, targets, context.now);
        }
    }
}
