//! Actors of a process: how their endpoints handle a message.

use super::outbox::{OutgoingMessage, Payload};
use super::{Context, Process, Request, Scheduled, Wait, detail_of};
use crate::message::{SpawnParameters, Task, Work, pack};
use crate::oracle::value_of;
use mesh_runtime::fault;
use mesh_runtime::mailbox::Closed;
use mesh_runtime::supervise::{Event, FailureId};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::time::Duration;

/// The maximum number of messages that a concurrent actor handles simultaneously.
const CONCURRENT_MAX: usize = 4;

/// The phase of an actor's life cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    /// Requested to stop; everything that it owns stops first.
    Stopping,
    /// Failed; everything that it owns is being stopped.
    Failed,
}

/// An actor of this process.
#[derive(Debug)]
pub(super) struct Actor {
    parameters: SpawnParameters,
    owner: ProcId,
    rank: u32,
    phase: Phase,
    /// Distinguishes the actor from others that had its port previously.
    number: u64,
    jobs: usize,
    /// Stop requests, which get a reply when the actor has stopped.
    stoppers: Vec<Head>,
}

/// The reply of an endpoint that is still running.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The port of the actor.
    pub port: PortId,
    /// The number of the actor.
    pub number: u64,
    /// The head of the request.
    pub request: Head,
    /// 0 for a value, otherwise a fault.
    pub code: u8,
    /// The value.
    pub value: u64,
}

impl Actor {
    pub(super) fn new(parameters: SpawnParameters, owner: ProcId, rank: u32, number: u64) -> Self {
        let phase = Phase::Running;
        Self { parameters, owner, rank, phase, number, jobs: 0, stoppers: Vec::new() }
    }

    pub(super) fn owner(&self) -> (ProcId, u32, PortId) {
        (self.owner, self.parameters.incarnation, self.parameters.owner)
    }

    pub(super) fn level(&self) -> u32 {
        self.parameters.level
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs == 0
    }

    /// How many more messages it can take from its mailbox.
    pub(super) fn free_capacity(&self) -> usize {
        let max = if self.parameters.is_concurrent { CONCURRENT_MAX } else { 1 };
        max - self.jobs
    }
}

impl Process {
    pub(super) fn handle_message(
        &mut self,
        port: PortId,
        frame: &Frame,
        context: &mut Context<'_>,
    ) {
        let Some(task) = Task::decode(&frame.tail) else {
            return context.oracle.violated(|| format!("{port:?} got {:?}", frame.tail));
        };
        let Some(actor) = self.actors.get_mut(&port) else {
            return context.oracle.violated(|| format!("no actor takes {task:?} at {port:?}"));
        };
        actor.jobs += 1;
        let level = actor.parameters.level;
        let request = frame.head;
        let value = value_of(task.tag, request.rank);
        let job = Job { port, number: actor.number, request, code: 0, value };
        context.oracle.received(self.life, port, request.rank, &task);
        match task.work {
            Work::Echo => self.finish(job, context),
            Work::Raise => self.finish(Job { code: fault::RAISED, ..job }, context),
            Work::Slow => {
                let after = Duration::from_micros(context.rng.between(10, 20_000));
                context.requests.push(Request::Schedule(after, Scheduled::Finish(job)));
            }
            // The deadline of the caller expires long before the endpoint completes.
            Work::Silent => {
                let after = Duration::from_secs(1);
                context.requests.push(Request::Schedule(after, Scheduled::Finish(job)));
            }
            Work::Crash => {
                let failure = self.new_failure();
                self.finish(Job { code: fault::RAISED, ..job }, context);
                self.fail_actor(port, failure, context);
            }
            Work::Nested => self.call_higher_level(job, level, context),
            // Agents have no actors, so this ends no host. These worlds do not simulate that.
            Work::Exit => context.requests.push(Request::Exit),
        }
    }

    /// Calls one rank of a mesh of a higher level, and replies when that call completes.
    fn call_higher_level(&mut self, job: Job, level: u32, context: &mut Context<'_>) {
        let higher: Vec<usize> = (0..context.directory.handles().len())
            .filter(|at| context.directory.handles()[*at].level > level)
            .collect();
        let Some(at) = context.rng.pick(&higher) else { return self.finish(job, context) };
        let handle = context.directory.handles()[*at].clone();
        let rank = context.rng.below(u64::from(handle.region.count())) as usize;
        let work = if context.rng.chance(300) { Work::Nested } else { Work::Echo };
        let tag = context.oracle.new_tag();
        let message = OutgoingMessage {
            kind: Kind::Call,
            port: handle.port,
            targets: [handle.targets[rank]].into(),
            payload: Payload::Task { line: handle.port.0, tag, work },
            window: context.plan.window,
            timeout: None,
            wait: Some(Wait::Nested { tag, job }),
            is_stream: false,
            refused: None,
        };
        self.submit(message, context);
    }

    /// Completes an endpoint: replies, and continues with the next message.
    pub(super) fn finish(&mut self, job: Job, context: &mut Context<'_>) {
        let Job { port, number, request, code, value } = job;
        self.node.reply(&request, code, (0, 0), pack(&[value]));
        // The actor may have failed and been restarted since the endpoint started.
        if let Some(actor) = self.actors.get_mut(&port)
            && actor.number == number
        {
            actor.jobs -= 1;
        }
        if self.node.mailbox_len(port) > 0 {
            self.schedule(port, context);
        }
    }

    /// Fails an actor: notifies its callers and its owner, and stops everything that it owns.
    pub(super) fn fail_actor(
        &mut self,
        port: PortId,
        failure: FailureId,
        context: &mut Context<'_>,
    ) {
        let Some(actor) = self.actors.get_mut(&port) else { return };
        if actor.phase == Phase::Failed {
            return;
        }
        let was_running = actor.phase == Phase::Running;
        actor.phase = Phase::Failed;
        let (rank, owner, parameters) = (actor.rank, actor.owner, actor.parameters);
        let closed = Closed { code: fault::ACTOR_FAILED, detail: detail_of(failure) };
        self.node.close_mailbox(port, closed);
        context.oracle.closed(self.life, port);
        if was_running {
            self.report(owner, &parameters, rank, failure, context);
        }
        self.supervise(Event::OwnerFailed { owner: port }, context);
    }

    /// Stops an actor, and replies to the request when everything that the actor owned has stopped.
    pub(super) fn stop_actor(
        &mut self,
        port: PortId,
        request: Option<Head>,
        context: &mut Context<'_>,
    ) {
        let Some(actor) = self.actors.get_mut(&port) else {
            if let Some(head) = request {
                self.node.reply(&head, 0, (0, 0), pack(&[]));
            }
            return;
        };
        actor.stoppers.extend(request);
        if actor.phase == Phase::Running {
            actor.phase = Phase::Stopping;
            self.supervise(Event::OwnerStopping { owner: port }, context);
        }
    }

    /// Starts the cleanup of a stopping actor after everything that it owned has stopped.
    pub(super) fn begin_clean_up(&mut self, port: PortId, context: &mut Context<'_>) {
        let after = Duration::from_micros(context.rng.between(1, 2000));
        context.requests.push(Request::Schedule(after, Scheduled::CleanedUp(port)));
    }

    /// Removes an actor whose cleanup is complete.
    pub(super) fn cleaned_up(&mut self, port: PortId, context: &mut Context<'_>) {
        let owned = self.supervisor.children_of(port).len();
        context.oracle.expect(owned == 0, || format!("{port:?} is outlived by what it owns"));
        self.supervise(Event::OwnerStopped { owner: port }, context);
        let Some(actor) = self.actors.remove(&port) else { return };
        let detail = bytes::Bytes::new();
        self.node.close_mailbox(port, Closed { code: fault::STOPPED, detail });
        if context.rng.chance(200) {
            self.node.drop_port(port);
        }
        context.oracle.closed(self.life, port);
        for head in &actor.stoppers {
            self.node.reply(head, 0, (0, 0), pack(&[]));
        }
    }
}
