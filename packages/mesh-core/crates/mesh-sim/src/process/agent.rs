//! The services of a process for others: starting and stopping actors, replacing processes.

use super::actor::Actor;
use super::{Context, Process, Request, detail_of};
use crate::message::{AgentRequest, SpawnParameters, death, pack};
use mesh_runtime::fault;
use mesh_runtime::supervise::{Event, FailureId};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::ProcId;

/// A slot for a process on the host of an agent.
#[derive(Debug)]
pub(super) struct Slot {
    incarnation: u32,
    is_alive: bool,
    /// Requests for a replacement, which get a reply when it has started.
    requesters: Vec<Head>,
}

/// How many messages a sender may have outstanding at a new actor.
///
/// This is the first word of its [`SpawnParameters`].
fn window_of(spawn: &Frame) -> u32 {
    spawn.meta().first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
}

impl Process {
    pub(super) fn handle_agent_message(&mut self, frame: &Frame, context: &mut Context<'_>) {
        let head = &frame.head;
        match head.kind {
            Kind::Spawn => self.start_actor(frame, context),
            Kind::Died => self.proc_died(head.from.proc, head.rank, context),
            Kind::Call => match AgentRequest::decode(&frame.tail) {
                Some(AgentRequest::Stop(port)) => self.stop_actor(port, Some(*head), context),
                Some(AgentRequest::Replace { slot, died }) => {
                    self.replace(slot, died, *head, context)
                }
                None => context.oracle.violated(|| format!("not an agent request: {frame:?}")),
            },
            // The endpoint continues; its reply will find no caller.
            Kind::Cancel => {}
            _ => context.oracle.violated(|| format!("not for an agent: {head:?}")),
        }
    }

    fn start_actor(&mut self, frame: &Frame, context: &mut Context<'_>) {
        let head = &frame.head;
        let Some(parameters) = SpawnParameters::decode(frame.meta()) else {
            return context.oracle.violated(|| format!("not spawn parameters: {frame:?}"));
        };
        let (port, owner) = (head.to.port, head.from.proc);
        // If the port had an actor before, this one gets the messages that were kept for it.
        self.node.open_mailbox(port, window_of(frame));
        self.actors_begun += 1;
        let actor = Actor::new(parameters, owner, head.rank, self.actors_begun);
        if let Some(old) = self.actors.insert(port, actor) {
            context.oracle.violated(|| format!("{port:?} of {} started over {old:?}", self.id));
        }
        context.oracle.opened(self.life, port, context.now);
        let has_supervise = context.rng.chance(500);
        self.supervise(Event::OwnerStarted { owner: port, has_supervise }, context);
        self.node.reply(head, 0, (0, 0), pack(&[u64::from(self.incarnation)]));
        if owner != self.id {
            self.node.watch_incarnation(owner, parameters.incarnation);
            if self.dead.get(&owner).is_some_and(|died| *died >= parameters.incarnation) {
                self.stop_orphans(owner, parameters.incarnation, context);
            }
        }
        self.schedule(port, context);
    }

    /// Handles the report of a host that one of its processes has died.
    fn proc_died(&mut self, proc: ProcId, incarnation: u32, context: &mut Context<'_>) {
        let last = self.dead.entry(proc).or_insert(incarnation);
        *last = incarnation.max(*last);
        self.ranks_died(proc, incarnation, context);
        self.stop_orphans(proc, incarnation, context);
    }

    /// Stops the actors whose owner was in a process that died.
    fn stop_orphans(&mut self, proc: ProcId, incarnation: u32, context: &mut Context<'_>) {
        let is_orphan = |actor: &Actor| {
            let (owner, of_incarnation, _) = actor.owner();
            owner == proc && of_incarnation <= incarnation
        };
        let all = self.actors.iter();
        let orphans: Vec<_> =
            all.filter(|(_, actor)| is_orphan(actor)).map(|(port, _)| *port).collect();
        for port in orphans {
            self.stop_actor(port, None, context);
        }
    }

    /// Registers a process that starts in a slot of this host when the world begins.
    pub fn add_slot(&mut self, slot: u32) {
        self.slots.insert(slot, Slot { incarnation: 0, is_alive: true, requesters: Vec::new() });
        self.node.proc_started(ProcId { host: self.id.host, slot }, 0);
    }

    /// Handles the exit of a child process.
    pub fn reap(&mut self, proc: ProcId, incarnation: u32) {
        if let Some(slot) = self.slots.get_mut(&proc.slot) {
            slot.is_alive = false;
        }
        let failure = FailureId(death(proc, incarnation));
        self.node.proc_died(proc, incarnation, detail_of(failure));
    }

    /// Starts a process in a slot, if the slot is empty.
    pub fn start_slot(&mut self, slot: u32, context: &mut Context<'_>) {
        let Some(entry) = self.slots.get_mut(&slot) else { return };
        if entry.is_alive {
            return;
        }
        entry.is_alive = true;
        entry.incarnation += 1;
        let incarnation = entry.incarnation;
        self.node.proc_started(ProcId { host: self.id.host, slot }, incarnation);
        context.requests.push(Request::Start { slot, incarnation });
        for head in std::mem::take(&mut entry.requesters) {
            self.node.reply(&head, 0, (0, 0), pack(&[u64::from(incarnation)]));
        }
    }

    fn replace(&mut self, slot: u32, died: u32, head: Head, context: &mut Context<'_>) {
        let Some(entry) = self.slots.get_mut(&slot) else {
            return self.node.reply(&head, fault::RAISED, (0, 0), pack(&[]));
        };
        if !entry.is_alive {
            entry.requesters.push(head);
            return self.start_slot(slot, context);
        }
        // Another request was faster, or the incarnation to replace has not died.
        let code = if entry.incarnation > died { 0 } else { fault::RAISED };
        self.node.reply(&head, code, (0, 0), pack(&[u64::from(entry.incarnation)]));
    }
}
