//! The meshes that actors of this process own: spawn, failure, restart, stop.

use super::outbox::{Letter, Text};
use super::{Later, Process, Request, Scene, Wait, failure_in};
use crate::directory::{Handle, targets};
use crate::message::{Birth, Order, Region, death, pack, unpack};
use mesh_runtime::fault;
use mesh_runtime::node::{Reply, Target};
use mesh_runtime::supervise::{
    ChildId, Effect, Event, FailureId, FailureKind, Owner, Policy, ROOT, Verdict,
};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::sync::Arc;
use std::time::Duration;

/// A recovery that has taken this many steps is not retried after another death.
const TRIES_MAX: u32 = 3;

/// A mesh that an actor of this process owns.
#[derive(Debug)]
pub(super) struct Mesh {
    port: PortId,
    birth: Birth,
    targets: Arc<[Target]>,
    /// The incarnation of the process of each rank; `None` while the rank starts.
    ranks: Vec<Option<u32>>,
    is_stopping: bool,
}

impl Mesh {
    pub(super) fn port(&self) -> PortId {
        self.port
    }

    pub(super) fn owner(&self) -> PortId {
        self.birth.owner
    }
}

/// The recovery of a rank, and the step that is in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repair {
    child: ChildId,
    rank: u32,
    step: Step,
    tries: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Start a new process in the slot.
    Replace,
    /// Stop the remains of the previous actor.
    Stop,
    /// Start the actor.
    Spawn,
}

impl Process {
    /// Spawns a mesh that an actor of this process, or the root, owns.
    pub(super) fn spawn_mesh(
        &mut self,
        owner: Owner,
        region: Region,
        policy: Policy,
        scene: &mut Scene<'_>,
    ) {
        let port = self.node.new_port();
        let child = ChildId(port.0);
        let level = match self.actors.get(&owner) {
            Some(actor) => actor.level() + 1,
            None => scene.rng.below(4) as u32,
        };
        let birth = Birth {
            window: scene.plan.window,
            level,
            child: child.0,
            owner,
            incarnation: self.incarnation,
            is_concurrent: scene.rng.chance(400),
        };
        let targets = targets(region);
        for target in targets.iter().filter(|target| target.proc != self.id) {
            self.node.watch(target.proc);
        }
        let ranks = vec![None; targets.len()];
        let handle = Handle { port, region, targets: Arc::clone(&targets), level };
        scene.directory.add(handle);
        let mesh = Mesh { port, birth, targets: Arc::clone(&targets), ranks, is_stopping: false };
        self.meshes.insert(child, mesh);
        let spawned = Event::ChildSpawned { owner, child, ranks: region.count(), policy };
        self.supervise(spawned, scene);
        self.submit(birth_letter(port, &birth, targets, Wait::Spawn { child }), scene);
    }

    pub(super) fn spawned(&mut self, child: ChildId, replies: &[Reply], scene: &mut Scene<'_>) {
        for reply in replies {
            self.rank_spawned(child, reply, scene);
        }
    }

    /// Records a rank that has started, or that died before it could.
    fn rank_spawned(&mut self, child: ChildId, reply: &Reply, scene: &mut Scene<'_>) -> bool {
        let Some(mesh) = self.meshes.get_mut(&child) else { return false };
        let rank = reply.rank;
        let proc = mesh.targets[rank as usize].proc;
        let died = self.dead.get(&proc).copied();
        let failure = match (reply.code, unpack(&reply.frame.tail)) {
            (0, Some([incarnation])) if died.is_none_or(|died| u64::from(died) < incarnation) => {
                mesh.ranks[rank as usize] = Some(incarnation as u32);
                if proc != self.id {
                    self.node.watch_incarnation(proc, incarnation as u32);
                }
                return true;
            }
            (0, Some([incarnation])) => FailureId(death(proc, incarnation as u32)),
            (0, None) => {
                scene.oracle.violated(|| format!("a spawn got the reply {reply:?}"));
                return false;
            }
            _ => failure_in(&reply.frame).unwrap_or(FailureId(death(proc, died.unwrap_or(0)))),
        };
        let kind = FailureKind::ProcDied;
        self.supervise(Event::RankFailed { child, rank, failure, kind }, scene);
        false
    }

    /// Fails all ranks of owned meshes in a process that died, with the same failure.
    pub(super) fn ranks_died(&mut self, proc: ProcId, incarnation: u32, scene: &mut Scene<'_>) {
        let failure = FailureId(death(proc, incarnation));
        let mut hit = Vec::new();
        for (child, mesh) in &mut self.meshes {
            for target in mesh.targets.iter().filter(|target| target.proc == proc) {
                let lived_in = &mut mesh.ranks[target.rank as usize];
                if lived_in.is_some_and(|lived_in| lived_in <= incarnation) {
                    *lived_in = None;
                    hit.push((*child, target.rank));
                }
            }
        }
        let kind = FailureKind::ProcDied;
        for (child, rank) in hit {
            self.supervise(Event::RankFailed { child, rank, failure, kind }, scene);
        }
    }

    /// Notifies the owner of an actor that the actor failed.
    pub(super) fn report(
        &mut self,
        owner: ProcId,
        birth: &Birth,
        rank: u32,
        failure: FailureId,
        scene: &mut Scene<'_>,
    ) {
        let target = [Target { proc: owner, rank: 0 }].into();
        let tail = pack(&[birth.child, u64::from(rank), failure.0]);
        let letter = Letter::new(PortId::SUPERVISION, target, tail, Wait::Ignored);
        self.submit(Letter { wait: None, ..letter }, scene);
    }

    pub(super) fn supervision_takes(&mut self, frame: &Frame, scene: &mut Scene<'_>) {
        let Some([child, rank, failure]) = unpack(&frame.tail) else {
            return scene.oracle.violated(|| format!("not a report: {frame:?}"));
        };
        let (child, rank, failure) = (ChildId(child), rank as u32, FailureId(failure));
        if let Some(mesh) = self.meshes.get_mut(&child) {
            mesh.ranks[rank as usize] = None;
        }
        let kind = FailureKind::Crash;
        self.supervise(Event::RankFailed { child, rank, failure, kind }, scene);
    }

    /// Passes an event to the supervisor and carries out the resulting effects.
    pub(super) fn supervise(&mut self, event: Event, scene: &mut Scene<'_>) {
        let mut effects = Vec::new();
        self.supervisor.step(event, scene.now, &mut effects);
        let is_outermost = self.supervision.is_empty();
        self.supervision.extend(effects);
        if !is_outermost {
            // This call was caused by an effect that is being carried out. The effects queued
            // before come first.
            return;
        }
        let mut at = 0;
        while let Some(effect) = self.supervision.get(at).cloned() {
            self.carry_out(effect, scene);
            at += 1;
        }
        self.supervision.clear();
    }

    fn carry_out(&mut self, effect: Effect, scene: &mut Scene<'_>) {
        match effect {
            Effect::Restart { child, ranks } => {
                for rank in ranks {
                    self.begin_repair(child, rank, scene);
                }
            }
            Effect::CallSupervise { owner, failure, .. } => {
                let after = Duration::from_micros(scene.rng.between(1, 500_000));
                scene.requests.push(Request::Later(after, Later::Judge(owner, failure)));
            }
            Effect::FailOwner { owner, failure, .. } => self.fail_actor(owner, failure, scene),
            Effect::Root { .. } => scene.oracle.tally.roots += 1,
            Effect::StopChild { child, .. } => self.stop_mesh(child, scene),
            Effect::OwnerDone { owner: ROOT } => self.is_root_ended = true,
            Effect::OwnerDone { owner } => self.begin_clean_up(owner, scene),
            Effect::Settled { .. } => {}
            Effect::WakeAt(at) => {
                let after = at.saturating_sub(scene.now);
                scene.requests.push(Request::Later(after, Later::SupervisorTick));
            }
        }
    }

    pub(super) fn judge(&mut self, owner: Owner, failure: FailureId, scene: &mut Scene<'_>) {
        let verdict = [Verdict::Handled, Verdict::Unhandled, Verdict::Raised];
        let verdict = verdict[scene.rng.weighted(&[6, 3, 1])];
        self.supervise(Event::Handled { failure, owner, verdict }, scene);
    }

    /// Stops all ranks of a mesh, including presumably dead ones.
    pub(super) fn stop_mesh(&mut self, child: ChildId, scene: &mut Scene<'_>) {
        let Some(mesh) = self.meshes.get_mut(&child) else { return };
        if std::mem::replace(&mut mesh.is_stopping, true) {
            return;
        }
        let tail = Order::Stop(mesh.port).encode();
        let targets = Arc::clone(&mesh.targets);
        let letter = Letter::new(PortId::AGENT, targets, tail, Wait::Stop { child });
        self.submit(letter, scene);
    }

    pub(super) fn mesh_stopped(&mut self, child: ChildId, scene: &mut Scene<'_>) {
        self.meshes.remove(&child);
        self.supervise(Event::ChildStopped { child }, scene);
    }

    /// Stops a mesh at the request of the program.
    pub(super) fn stop_asked(&mut self, child: ChildId, scene: &mut Scene<'_>) {
        self.supervise(Event::ChildStopping { child }, scene);
        self.stop_mesh(child, scene);
    }

    /// Ends the program: stops everything that the root owns.
    pub fn end_program(&mut self, scene: &mut Scene<'_>) {
        self.supervise(Event::OwnerStopping { owner: ROOT }, scene);
    }

    fn begin_repair(&mut self, child: ChildId, rank: u32, scene: &mut Scene<'_>) {
        let Some(mesh) = self.meshes.get_mut(&child) else { return };
        mesh.ranks[rank as usize] = None;
        let repair = Repair { child, rank, step: Step::Stop, tries: 0 };
        self.take_step(repair, scene);
    }

    fn take_step(&mut self, repair: Repair, scene: &mut Scene<'_>) {
        let Some(mesh) = self.meshes.get(&repair.child) else { return };
        if mesh.is_stopping {
            return;
        }
        let target = mesh.targets[repair.rank as usize];
        let proc = target.proc;
        let wait = Wait::Repair(repair);
        let letter = match repair.step {
            Step::Replace => {
                let died = self.dead.get(&proc).copied().unwrap_or(0);
                let tail = Order::Replace { slot: proc.slot, died }.encode();
                let agent = Target { proc: ProcId { slot: 0, ..proc }, rank: repair.rank };
                Letter::new(PortId::AGENT, [agent].into(), tail, wait)
            }
            Step::Stop => {
                let tail = Order::Stop(mesh.port).encode();
                Letter::new(PortId::AGENT, [target].into(), tail, wait)
            }
            Step::Spawn => {
                let (port, birth) = (mesh.port, mesh.birth);
                if proc != self.id {
                    self.node.watch(proc);
                }
                birth_letter(port, &birth, [target].into(), wait)
            }
        };
        self.submit(letter, scene);
    }

    pub(super) fn repaired(&mut self, repair: Repair, reply: &Reply, scene: &mut Scene<'_>) {
        let Repair { child, rank, step, tries } = repair;
        let next = match (step, reply.code) {
            // A spawn that was abandoned with the old process may have reached the new one.
            (Step::Replace, 0) => {
                self.note_replacement(repair, reply, scene);
                Some(Step::Stop)
            }
            (Step::Stop, 0) => Some(Step::Spawn),
            (Step::Spawn, 0) => {
                scene.oracle.tally.restarts += 1;
                self.supervise(Event::RestartDone { child, rank, ok: true }, scene);
                self.rank_spawned(child, reply, scene);
                return;
            }
            (_, fault::PROC_DIED) if tries < TRIES_MAX => Some(Step::Replace),
            _ => None,
        };
        match next {
            Some(step) => self.take_step(Repair { step, tries: tries + 1, ..repair }, scene),
            None => self.supervise(Event::RestartDone { child, rank, ok: false }, scene),
        }
    }

    /// Reports to the oracle which process, as far as this one knows, replaces a rank.
    fn note_replacement(&self, repair: Repair, reply: &Reply, scene: &mut Scene<'_>) {
        let Some(mesh) = self.meshes.get(&repair.child) else { return };
        let proc = mesh.targets[repair.rank as usize].proc;
        match unpack(&reply.frame.tail) {
            Some([incarnation]) => {
                scene.oracle.replaced(self.life, proc, incarnation as u32, scene.now);
            }
            None => scene.oracle.violated(|| format!("a replacement got the reply {reply:?}")),
        }
    }
}

fn birth_letter(port: PortId, birth: &Birth, targets: Arc<[Target]>, wait: Wait) -> Letter {
    let meta = birth.encode();
    let letter = Letter::new(port, targets, meta.clone(), wait);
    let text = Text::Fixed { meta_len: meta.len() as u16, tail: meta };
    Letter { kind: Kind::Spawn, text, ..letter }
}
