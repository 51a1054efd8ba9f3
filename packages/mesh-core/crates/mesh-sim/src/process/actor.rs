//! Actors of a process: what their endpoints do with a message.

use super::outbox::{Letter, Text};
use super::{Later, Process, Request, Scene, Wait, detail_of};
use crate::message::{Birth, Errand, Work, pack};
use crate::oracle::value_of;
use mesh_runtime::fault;
use mesh_runtime::mailbox::Closed;
use mesh_runtime::supervise::{Event, FailureId};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::time::Duration;

/// Messages that a concurrent actor works on at once.
const CONCURRENT_MAX: usize = 4;

/// How far the life of an actor has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    /// Told to stop; what it owns is stopped first.
    Stopping,
    /// It failed; what it owns is stopped.
    Failed,
}

/// An actor of this process.
#[derive(Debug)]
pub(super) struct Actor {
    birth: Birth,
    owner: ProcId,
    rank: u32,
    phase: Phase,
    /// Tells it from others that had its port before.
    number: u64,
    jobs: usize,
    /// Who asked it to stop and hears when it has.
    stoppers: Vec<Head>,
}

/// What an endpoint has to say when it is done.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Where the actor listens.
    pub port: PortId,
    /// The actor.
    pub number: u64,
    /// The message.
    pub request: Head,
    /// 0 for a value, else a fault.
    pub code: u8,
    /// The value.
    pub value: u64,
}

impl Actor {
    pub(super) fn new(birth: Birth, owner: ProcId, rank: u32, number: u64) -> Self {
        let phase = Phase::Running;
        Self { birth, owner, rank, phase, number, jobs: 0, stoppers: Vec::new() }
    }

    pub(super) fn owner(&self) -> (ProcId, u32, PortId) {
        (self.owner, self.birth.incarnation, self.birth.owner)
    }

    pub(super) fn level(&self) -> u32 {
        self.birth.level
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs == 0
    }

    /// How many messages it may take out of its mailbox now.
    pub(super) fn room(&self) -> usize {
        let max = if self.birth.is_concurrent { CONCURRENT_MAX } else { 1 };
        max - self.jobs
    }
}

impl Process {
    pub(super) fn actor_takes(&mut self, port: PortId, frame: &Frame, scene: &mut Scene<'_>) {
        let Some(errand) = Errand::decode(&frame.tail) else {
            return scene.oracle.violated(|| format!("{port:?} got {:?}", frame.tail));
        };
        let Some(actor) = self.actors.get_mut(&port) else {
            return scene.oracle.violated(|| format!("no actor takes {errand:?} at {port:?}"));
        };
        actor.jobs += 1;
        let level = actor.birth.level;
        let request = frame.head;
        let value = value_of(errand.tag, request.rank);
        let job = Job { port, number: actor.number, request, code: 0, value };
        scene.oracle.received(self.life, port, request.rank, &errand);
        match errand.work {
            Work::Echo => self.finish(job, scene),
            Work::Raise => self.finish(Job { code: fault::RAISED, ..job }, scene),
            Work::Slow => {
                let after = Duration::from_micros(scene.rng.between(10, 20_000));
                scene.requests.push(Request::Later(after, Later::Finish(job)));
            }
            // It is given up by its caller long before it would be done.
            Work::Silent => {
                let after = Duration::from_secs(1);
                scene.requests.push(Request::Later(after, Later::Finish(job)));
            }
            Work::Crash => {
                let failure = self.new_failure();
                self.finish(Job { code: fault::RAISED, ..job }, scene);
                self.fail_actor(port, failure, scene);
            }
            Work::Nested => self.call_onwards(job, level, scene),
            // An agent that ends is a host that dies, which is another story.
            Work::Exit => scene.requests.push(Request::Exit),
        }
    }

    /// Calls one rank of a mesh of a higher level, and answers when that has answered.
    fn call_onwards(&mut self, job: Job, level: u32, scene: &mut Scene<'_>) {
        let higher: Vec<usize> = (0..scene.directory.handles().len())
            .filter(|at| scene.directory.handles()[*at].level > level)
            .collect();
        let Some(at) = scene.rng.pick(&higher) else { return self.finish(job, scene) };
        let handle = scene.directory.handles()[*at].clone();
        let rank = scene.rng.below(u64::from(handle.region.count())) as usize;
        let work = if scene.rng.chance(300) { Work::Nested } else { Work::Echo };
        let tag = scene.oracle.new_tag();
        let letter = Letter {
            kind: Kind::Call,
            port: handle.port,
            targets: [handle.targets[rank]].into(),
            text: Text::Errand { line: handle.port.0, tag, work },
            window: scene.plan.window,
            timeout: None,
            wait: Some(Wait::Nested { tag, job }),
            is_stream: false,
            refused: None,
        };
        self.submit(letter, scene);
    }

    /// An endpoint is done: answers, and goes on with the next message.
    pub(super) fn finish(&mut self, job: Job, scene: &mut Scene<'_>) {
        let Job { port, number, request, code, value } = job;
        self.node.answer(&request, code, (0, 0), pack(&[value]));
        // The actor may have failed and been started anew meanwhile.
        if let Some(actor) = self.actors.get_mut(&port)
            && actor.number == number
        {
            actor.jobs -= 1;
        }
        if self.node.mailbox_len(port) > 0 {
            self.schedule(port, scene);
        }
    }

    /// An actor fails: callers hear it, its owner does, and what it owns is stopped.
    pub(super) fn fail_actor(&mut self, port: PortId, failure: FailureId, scene: &mut Scene<'_>) {
        let Some(actor) = self.actors.get_mut(&port) else { return };
        if actor.phase == Phase::Failed {
            return;
        }
        let was_running = actor.phase == Phase::Running;
        actor.phase = Phase::Failed;
        let (rank, owner, birth) = (actor.rank, actor.owner, actor.birth);
        let closed = Closed { code: fault::ACTOR_FAILED, detail: detail_of(failure) };
        self.node.close_mailbox(port, closed);
        scene.oracle.closed(self.life, port);
        if was_running {
            self.report(owner, &birth, rank, failure, scene);
        }
        self.supervise(Event::OwnerFailed { owner: port }, scene);
    }

    /// Somebody wants an actor stopped; who asked hears when nothing of it is left.
    pub(super) fn stop_actor(&mut self, port: PortId, asked: Option<Head>, scene: &mut Scene<'_>) {
        let Some(actor) = self.actors.get_mut(&port) else {
            if let Some(head) = asked {
                self.node.answer(&head, 0, (0, 0), pack(&[]));
            }
            return;
        };
        actor.stoppers.extend(asked);
        if actor.phase == Phase::Running {
            actor.phase = Phase::Stopping;
            self.supervise(Event::OwnerStopping { owner: port }, scene);
        }
    }

    /// What an ending actor owned is gone: it cleans up.
    pub(super) fn begin_clean_up(&mut self, port: PortId, scene: &mut Scene<'_>) {
        let after = Duration::from_micros(scene.rng.between(1, 2000));
        scene.requests.push(Request::Later(after, Later::CleanedUp(port)));
    }

    /// An actor is gone.
    pub(super) fn cleaned_up(&mut self, port: PortId, scene: &mut Scene<'_>) {
        let owned = self.supervisor.children_of(port).len();
        scene.oracle.expect(owned == 0, || format!("{port:?} is outlived by what it owns"));
        self.supervise(Event::OwnerStopped { owner: port }, scene);
        let Some(actor) = self.actors.remove(&port) else { return };
        let detail = bytes::Bytes::new();
        self.node.close_mailbox(port, Closed { code: fault::STOPPED, detail });
        if scene.rng.chance(200) {
            self.node.drop_port(port);
        }
        scene.oracle.closed(self.life, port);
        for head in &actor.stoppers {
            self.node.answer(head, 0, (0, 0), pack(&[]));
        }
    }
}
