//! Actions that programs take on their own initiative: call, send, cast, cancel, spawn and stop.

use super::outbox::{OutgoingMessage, Payload};
use super::{Context, Process, Wait};
use crate::directory::Handle;
use crate::message::{Region, Work, unpack};
use crate::rng::Rng;
use mesh_runtime::node::{Reply, Target};
use mesh_runtime::supervise::{Policy, ROOT, Restart, Scope};
use mesh_wire::frame::Kind;
use mesh_wire::id::{PortId, ProcId};
use std::time::Duration;

/// The maximum depth of ownership between actors.
const LEVEL_MAX: u32 = 8;

/// An action of a program, in the order of [`crate::plan::Plan::action_weights`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Call one rank.
    CallOne,
    /// Call a mesh or a slice of it.
    CallMany,
    /// Send a one-way message to one rank.
    SendOne,
    /// Send a one-way message to a mesh or a slice of it.
    SendMany,
    /// Call a whole mesh and take the replies as they arrive.
    Cast,
    /// Abandon a call.
    GiveUp,
    /// Spawn a mesh that is owned by an actor of this process or by the root.
    Spawn,
    /// Stop a mesh that is owned by this process.
    Stop,
}

impl Action {
    /// All actions, in the order of the weights.
    pub const ALL: [Self; 8] = [
        Self::CallOne,
        Self::CallMany,
        Self::SendOne,
        Self::SendMany,
        Self::Cast,
        Self::GiveUp,
        Self::Spawn,
        Self::Stop,
    ];
}

impl Process {
    /// Performs an action, if its preconditions hold.
    pub fn act(&mut self, action: Action, context: &mut Context<'_>) {
        match action {
            Action::GiveUp => self.give_up(context),
            Action::Spawn => self.spawn_random(context),
            Action::Stop => self.stop_random(context),
            _ => {
                let Some(handle) = context.rng.pick(context.directory.handles()).cloned() else {
                    return;
                };
                self.use_mesh(action, &handle, context);
            }
        }
    }

    fn use_mesh(&mut self, action: Action, handle: &Handle, context: &mut Context<'_>) {
        let work = Work::ALL[context.rng.weighted(&context.plan.work_weights)];
        let is_many = matches!(action, Action::CallMany | Action::SendMany | Action::Cast);
        // If a whole mesh crashed or exited, too little of the world would be left.
        let is_harsh = matches!(work, Work::Crash | Work::Exit | Work::Silent);
        let work = if is_many && is_harsh { Work::Slow } else { work };
        let tag = context.oracle.new_tag();
        let targets = match action {
            Action::Cast => handle.targets.to_vec(),
            _ if is_many => slice(&handle.targets, context.rng),
            _ => vec![*context.rng.pick(&handle.targets).expect("a mesh has ranks")],
        };
        let is_cast = action == Action::Cast;
        let is_call = matches!(action, Action::CallOne | Action::CallMany | Action::Cast);
        let has_deadline =
            work == Work::Silent || context.rng.chance(context.plan.timeout_permille);
        let timeout = has_deadline.then(|| Duration::from_micros(context.rng.between(1, 300_000)));
        let message = OutgoingMessage {
            kind: Kind::Call,
            port: handle.port,
            targets: targets.into(),
            payload: Payload::Task { line: handle.port.0, tag, work },
            window: context.plan.window,
            timeout,
            wait: is_call.then_some(Wait::Client { tag, is_cast }),
            is_stream: is_cast,
            refused: None,
        };
        self.submit(message, context);
    }

    pub(super) fn client_replied(
        &mut self,
        tag: u64,
        replies: &[Reply],
        context: &mut Context<'_>,
    ) {
        for reply in replies {
            let value = unpack(&reply.frame.tail).map(|[word]| word);
            let from = reply.frame.head.from.proc;
            context.oracle.replied(tag, reply.rank, from, reply.code, value);
        }
    }

    fn give_up(&mut self, context: &mut Context<'_>) {
        let calls: Vec<(PortId, u64)> = self
            .waits
            .iter()
            .filter_map(|(reply_port, wait)| match wait {
                Wait::Client { tag, .. } => Some((*reply_port, *tag)),
                _ => None,
            })
            .collect();
        let Some((reply_port, tag)) = context.rng.pick(&calls) else { return };
        // Either the receivers are notified, or the call continues and its replies are discarded.
        if context.rng.chance(700) {
            self.node.cancel(*reply_port);
        } else {
            self.node.forget(*reply_port);
        }
        self.waits.remove(reply_port);
        context.oracle.call_given_up(*tag);
    }

    fn spawn_random(&mut self, context: &mut Context<'_>) {
        let mut owners: Vec<PortId> = self
            .actors
            .iter()
            .filter(|(_, actor)| actor.is_running() && actor.level() < LEVEL_MAX)
            .map(|(port, _)| *port)
            .collect();
        if self.is_controller() {
            owners.push(ROOT);
        }
        let Some(owner) = context.rng.pick(&owners).copied() else { return };
        let region = region(2, 4, context);
        let policy = policy(context.rng);
        self.spawn_mesh(owner, region, policy, context);
    }

    /// Spawns one of the initial meshes, owned by the root.
    pub fn spawn_first(&mut self, context: &mut Context<'_>) {
        let region = region(context.plan.hosts, context.plan.slots, context);
        let policy = policy(context.rng);
        self.spawn_mesh(ROOT, region, policy, context);
    }

    fn stop_random(&mut self, context: &mut Context<'_>) {
        let all: Vec<_> = self.meshes.keys().copied().collect();
        if let Some(child) = context.rng.pick(&all) {
            self.stop_on_request(*child, context);
        }
    }

    fn is_controller(&self) -> bool {
        self.id == ProcId::default()
    }
}

/// Selects ranks of a mesh: all of them, every n-th from a random start, or a random subset.
fn slice(targets: &[Target], rng: &mut Rng) -> Vec<Target> {
    let len = targets.len() as u64;
    match rng.below(3) {
        0 => targets.to_vec(),
        1 => {
            let first = rng.below(len) as usize;
            let step = rng.between(1, 7) as usize;
            targets.iter().skip(first).step_by(step).copied().collect()
        }
        _ => {
            let some: Vec<Target> = targets.iter().filter(|_| rng.chance(300)).copied().collect();
            if some.is_empty() { vec![targets[0]] } else { some }
        }
    }
}

/// Draws a rectangular region of processes that contains no agent.
fn region(hosts_max: u32, slots_max: u32, context: &mut Context<'_>) -> Region {
    let plan = context.plan;
    let mut below = |bound: u32| context.rng.below(u64::from(bound)) as u32;
    let hosts = 1 + below(hosts_max.min(plan.hosts));
    let slots = 1 + below(slots_max.min(plan.slots - 1));
    let host = below(plan.hosts - hosts + 1);
    let slot = 1 + below(plan.slots - slots);
    Region { host, hosts, slot, slots }
}

fn policy(rng: &mut Rng) -> Policy {
    let restart = [Restart::Never, Restart::Temporary, Restart::Transient, Restart::Permanent];
    Policy {
        restart: *rng.pick(&restart).expect("a fixed list"),
        scope: if rng.chance(300) { Scope::OneForAll } else { Scope::OneForOne },
        intensity_max: rng.below(5) as u32,
        period: Duration::from_millis(rng.between(50, 2000)),
    }
}
