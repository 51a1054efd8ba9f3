//! What programs do by themselves: call, send, cast, give up, spawn and stop.

use super::outbox::{Letter, Text};
use super::{Process, Scene, Wait};
use crate::directory::Handle;
use crate::message::{Region, Work, unpack};
use crate::rng::Rng;
use mesh_runtime::node::{Answer, Target};
use mesh_runtime::supervise::{Policy, ROOT, Restart, Scope};
use mesh_wire::frame::Kind;
use mesh_wire::id::{PortId, ProcId};
use std::time::Duration;

/// How deep actors may own actors.
const LEVEL_MAX: u32 = 8;

/// One thing that a program does. The order is that of [`crate::plan::Plan::action_weights`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Calls one rank.
    CallOne,
    /// Calls a mesh or a slice of it.
    CallMany,
    /// Sends to one rank.
    SendOne,
    /// Sends to a mesh or a slice of it.
    SendMany,
    /// Calls a whole mesh, and takes the answers as they come.
    Cast,
    /// Gives up a call.
    GiveUp,
    /// Gives one of its actors a mesh, or the root.
    Spawn,
    /// Stops a mesh that is owned here.
    Stop,
}

impl Action {
    /// All, in the order of the weights.
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
    /// Does one thing, if there is anything to do it with.
    pub fn act(&mut self, action: Action, scene: &mut Scene<'_>) {
        match action {
            Action::GiveUp => self.give_up(scene),
            Action::Spawn => self.spawn_some(scene),
            Action::Stop => self.stop_some(scene),
            _ => {
                let Some(handle) = scene.rng.pick(scene.directory.handles()).cloned() else {
                    return;
                };
                self.use_mesh(action, &handle, scene);
            }
        }
    }

    fn use_mesh(&mut self, action: Action, handle: &Handle, scene: &mut Scene<'_>) {
        let work = Work::ALL[scene.rng.weighted(&scene.plan.work_weights)];
        let is_many = matches!(action, Action::CallMany | Action::SendMany | Action::Cast);
        // A mesh that crashes or exits as a whole leaves too little of a world.
        let is_harsh = matches!(work, Work::Crash | Work::Exit | Work::Silent);
        let work = if is_many && is_harsh { Work::Slow } else { work };
        let tag = scene.oracle.new_tag();
        let targets = match action {
            Action::Cast => handle.targets.to_vec(),
            _ if is_many => slice(&handle.targets, scene.rng),
            _ => vec![*scene.rng.pick(&handle.targets).expect("a mesh has ranks")],
        };
        let is_cast = action == Action::Cast;
        let is_call = matches!(action, Action::CallOne | Action::CallMany | Action::Cast);
        let has_deadline = work == Work::Silent || scene.rng.chance(scene.plan.timeout_permille);
        let timeout = has_deadline.then(|| Duration::from_micros(scene.rng.between(1, 300_000)));
        let letter = Letter {
            kind: Kind::Call,
            port: handle.port,
            targets: targets.into(),
            text: Text::Errand { line: handle.port.0, tag, work },
            window: scene.plan.window,
            timeout,
            wait: is_call.then_some(Wait::Client { tag, is_cast }),
            is_stream: is_cast,
            refused: None,
        };
        self.submit(letter, scene);
    }

    pub(super) fn client_answered(&mut self, tag: u64, answers: &[Answer], scene: &mut Scene<'_>) {
        for answer in answers {
            let value = unpack(&answer.frame.tail).map(|[word]| word);
            let from = answer.frame.head.from.proc;
            scene.oracle.answered(tag, answer.rank, from, answer.code, value);
        }
    }

    fn give_up(&mut self, scene: &mut Scene<'_>) {
        let calls: Vec<(PortId, u64)> = self
            .waits
            .iter()
            .filter_map(|(reply, wait)| match wait {
                Wait::Client { tag, .. } => Some((*reply, *tag)),
                _ => None,
            })
            .collect();
        let Some((reply, tag)) = scene.rng.pick(&calls) else { return };
        // The receivers are told, or they are left to answer nobody.
        if scene.rng.chance(700) {
            self.node.cancel(*reply);
        } else {
            self.node.forget(*reply);
        }
        self.waits.remove(reply);
        scene.oracle.call_given_up(*tag);
    }

    fn spawn_some(&mut self, scene: &mut Scene<'_>) {
        let mut owners: Vec<PortId> = self
            .actors
            .iter()
            .filter(|(_, actor)| actor.is_running() && actor.level() < LEVEL_MAX)
            .map(|(port, _)| *port)
            .collect();
        if self.is_controller() {
            owners.push(ROOT);
        }
        let Some(owner) = scene.rng.pick(&owners).copied() else { return };
        let region = region(2, 4, scene);
        let policy = policy(scene.rng);
        self.spawn_mesh(owner, region, policy, scene);
    }

    /// The root gets one of the meshes that the world begins with.
    pub fn spawn_first(&mut self, scene: &mut Scene<'_>) {
        let region = region(scene.plan.hosts, scene.plan.slots, scene);
        let policy = policy(scene.rng);
        self.spawn_mesh(ROOT, region, policy, scene);
    }

    fn stop_some(&mut self, scene: &mut Scene<'_>) {
        let all: Vec<_> = self.meshes.keys().copied().collect();
        if let Some(child) = scene.rng.pick(&all) {
            self.stop_asked(*child, scene);
        }
    }

    fn is_controller(&self) -> bool {
        self.id == ProcId::default()
    }
}

/// Some ranks of a mesh: all of them, every n-th from somewhere on, or each by chance.
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

/// A box of processes, none of which is an agent.
fn region(hosts_max: u32, slots_max: u32, scene: &mut Scene<'_>) -> Region {
    let plan = scene.plan;
    let mut below = |bound: u32| scene.rng.below(u64::from(bound)) as u32;
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
