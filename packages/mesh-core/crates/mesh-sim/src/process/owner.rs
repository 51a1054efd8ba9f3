//! The meshes that actors of this process own: spawn, failure, restart, stop.

use super::outbox::{OutgoingMessage, Payload};
use super::{Context, Process, Request, Scheduled, Wait, failure_in};
use crate::directory::{Handle, targets};
use crate::message::{AgentRequest, Region, SpawnParameters, death, pack, unpack};
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
    parameters: SpawnParameters,
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
        self.parameters.owner
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
        context: &mut Context<'_>,
    ) {
        let port = self.node.new_port();
        let child = ChildId(port.0);
        let level = match self.actors.get(&owner) {
            Some(actor) => actor.level() + 1,
            None => context.rng.below(4) as u32,
        };
        let parameters = SpawnParameters {
            window: context.plan.window,
            level,
            child: child.0,
            owner,
            incarnation: self.incarnation,
            is_concurrent: context.rng.chance(400),
        };
        let targets = targets(region);
        for target in targets.iter().filter(|target| target.proc != self.id) {
            self.node.watch(target.proc);
        }
        let ranks = vec![None; targets.len()];
        let handle = Handle { port, region, targets: Arc::clone(&targets), level };
        context.directory.add(handle);
        let mesh =
            Mesh { port, parameters, targets: Arc::clone(&targets), ranks, is_stopping: false };
        self.meshes.insert(child, mesh);
        let spawned = Event::ChildSpawned { owner, child, ranks: region.count(), policy };
        self.supervise(spawned, context);
        self.submit(spawn_message(port, &parameters, targets, Wait::Spawn { child }), context);
    }

    pub(super) fn spawned(&mut self, child: ChildId, replies: &[Reply], context: &mut Context<'_>) {
        for reply in replies {
            self.rank_spawned(child, reply, context);
        }
    }

    /// Records a rank that has started, or that died before it could.
    fn rank_spawned(&mut self, child: ChildId, reply: &Reply, context: &mut Context<'_>) -> bool {
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
                context.oracle.violated(|| format!("a spawn got the reply {reply:?}"));
                return false;
            }
            _ => failure_in(&reply.frame).unwrap_or(FailureId(death(proc, died.unwrap_or(0)))),
        };
        let kind = FailureKind::ProcDied;
        self.supervise(Event::RankFailed { child, rank, failure, kind }, context);
        false
    }

    /// Fails all ranks of owned meshes in a process that died, with the same failure.
    pub(super) fn ranks_died(&mut self, proc: ProcId, incarnation: u32, context: &mut Context<'_>) {
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
            self.supervise(Event::RankFailed { child, rank, failure, kind }, context);
        }
    }

    /// Notifies the owner of an actor that the actor failed.
    pub(super) fn report(
        &mut self,
        owner: ProcId,
        parameters: &SpawnParameters,
        rank: u32,
        failure: FailureId,
        context: &mut Context<'_>,
    ) {
        let target = [Target { proc: owner, rank: 0 }].into();
        let tail = pack(&[parameters.child, u64::from(rank), failure.0]);
        let message = OutgoingMessage::new(PortId::SUPERVISION, target, tail, Wait::Ignored);
        self.submit(OutgoingMessage { wait: None, ..message }, context);
    }

    pub(super) fn handle_failure_report(&mut self, frame: &Frame, context: &mut Context<'_>) {
        let Some([child, rank, failure]) = unpack(&frame.tail) else {
            return context.oracle.violated(|| format!("not a report: {frame:?}"));
        };
        let (child, rank, failure) = (ChildId(child), rank as u32, FailureId(failure));
        if let Some(mesh) = self.meshes.get_mut(&child) {
            mesh.ranks[rank as usize] = None;
        }
        let kind = FailureKind::Crash;
        self.supervise(Event::RankFailed { child, rank, failure, kind }, context);
    }

    /// Passes an event to the supervisor and carries out the resulting effects.
    pub(super) fn supervise(&mut self, event: Event, context: &mut Context<'_>) {
        let mut effects = Vec::new();
        self.supervisor.step(event, context.now, &mut effects);
        let is_outermost = self.supervision.is_empty();
        self.supervision.extend(effects);
        if !is_outermost {
            // This call was caused by an effect that is being carried out. The effects queued
            // before come first.
            return;
        }
        let mut at = 0;
        while let Some(effect) = self.supervision.get(at).cloned() {
            self.execute(effect, context);
            at += 1;
        }
        self.supervision.clear();
    }

    fn execute(&mut self, effect: Effect, context: &mut Context<'_>) {
        match effect {
            Effect::Restart { child, ranks } => {
                for rank in ranks {
                    self.begin_repair(child, rank, context);
                }
            }
            Effect::CallSupervise { owner, failure, .. } => {
                let after = Duration::from_micros(context.rng.between(1, 500_000));
                context.requests.push(Request::Schedule(after, Scheduled::Decide(owner, failure)));
            }
            Effect::FailOwner { owner, failure, .. } => self.fail_actor(owner, failure, context),
            Effect::Root { .. } => context.oracle.tally.roots += 1,
            Effect::StopChild { child, .. } => self.stop_mesh(child, context),
            Effect::OwnerDone { owner: ROOT } => self.is_root_ended = true,
            Effect::OwnerDone { owner } => self.begin_clean_up(owner, context),
            Effect::Settled { .. } => {}
            Effect::WakeAt(at) => {
                let after = at.saturating_sub(context.now);
                context.requests.push(Request::Schedule(after, Scheduled::SupervisorTick));
            }
        }
    }

    pub(super) fn decide(&mut self, owner: Owner, failure: FailureId, context: &mut Context<'_>) {
        let verdict = [Verdict::Handled, Verdict::Unhandled, Verdict::Raised];
        let verdict = verdict[context.rng.weighted(&[6, 3, 1])];
        self.supervise(Event::Handled { failure, owner, verdict }, context);
    }

    /// Stops all ranks of a mesh, including presumably dead ones.
    pub(super) fn stop_mesh(&mut self, child: ChildId, context: &mut Context<'_>) {
        let Some(mesh) = self.meshes.get_mut(&child) else { return };
        if std::mem::replace(&mut mesh.is_stopping, true) {
            return;
        }
        let tail = AgentRequest::Stop(mesh.port).encode();
        let targets = Arc::clone(&mesh.targets);
        let message = OutgoingMessage::new(PortId::AGENT, targets, tail, Wait::Stop { child });
        self.submit(message, context);
    }

    pub(super) fn mesh_stopped(&mut self, child: ChildId, context: &mut Context<'_>) {
        self.meshes.remove(&child);
        self.supervise(Event::ChildStopped { child }, context);
    }

    /// Stops a mesh at the request of the program.
    pub(super) fn stop_on_request(&mut self, child: ChildId, context: &mut Context<'_>) {
        self.supervise(Event::ChildStopping { child }, context);
        self.stop_mesh(child, context);
    }

    /// Ends the program: stops everything that the root owns.
    pub fn end_program(&mut self, context: &mut Context<'_>) {
        self.supervise(Event::OwnerStopping { owner: ROOT }, context);
    }

    fn begin_repair(&mut self, child: ChildId, rank: u32, context: &mut Context<'_>) {
        let Some(mesh) = self.meshes.get_mut(&child) else { return };
        mesh.ranks[rank as usize] = None;
        let repair = Repair { child, rank, step: Step::Stop, tries: 0 };
        self.run_step(repair, context);
    }

    fn run_step(&mut self, repair: Repair, context: &mut Context<'_>) {
        let Some(mesh) = self.meshes.get(&repair.child) else { return };
        if mesh.is_stopping {
            return;
        }
        let target = mesh.targets[repair.rank as usize];
        let proc = target.proc;
        let wait = Wait::Repair(repair);
        let message = match repair.step {
            Step::Replace => {
                let died = self.dead.get(&proc).copied().unwrap_or(0);
                let tail = AgentRequest::Replace { slot: proc.slot, died }.encode();
                let agent = Target { proc: ProcId { slot: 0, ..proc }, rank: repair.rank };
                OutgoingMessage::new(PortId::AGENT, [agent].into(), tail, wait)
            }
            Step::Stop => {
                let tail = AgentRequest::Stop(mesh.port).encode();
                OutgoingMessage::new(PortId::AGENT, [target].into(), tail, wait)
            }
            Step::Spawn => {
                let (port, parameters) = (mesh.port, mesh.parameters);
                if proc != self.id {
                    self.node.watch(proc);
                }
                spawn_message(port, &parameters, [target].into(), wait)
            }
        };
        self.submit(message, context);
    }

    pub(super) fn repaired(&mut self, repair: Repair, reply: &Reply, context: &mut Context<'_>) {
        let Repair { child, rank, step, tries } = repair;
        let next = match (step, reply.code) {
            // A spawn that was abandoned with the old process may have reached the new one.
            (Step::Replace, 0) => {
                self.note_replacement(repair, reply, context);
                Some(Step::Stop)
            }
            (Step::Stop, 0) => Some(Step::Spawn),
            (Step::Spawn, 0) => {
                context.oracle.tally.restarts += 1;
                self.supervise(Event::RestartDone { child, rank, ok: true }, context);
                self.rank_spawned(child, reply, context);
                return;
            }
            (_, fault::PROC_DIED) if tries < TRIES_MAX => Some(Step::Replace),
            _ => None,
        };
        match next {
            Some(step) => self.run_step(Repair { step, tries: tries + 1, ..repair }, context),
            None => self.supervise(Event::RestartDone { child, rank, ok: false }, context),
        }
    }

    /// Reports to the oracle which process, as far as this one knows, replaces a rank.
    fn note_replacement(&self, repair: Repair, reply: &Reply, context: &mut Context<'_>) {
        let Some(mesh) = self.meshes.get(&repair.child) else { return };
        let proc = mesh.targets[repair.rank as usize].proc;
        match unpack(&reply.frame.tail) {
            Some([incarnation]) => {
                context.oracle.replaced(self.life, proc, incarnation as u32, context.now);
            }
            None => context.oracle.violated(|| format!("a replacement got the reply {reply:?}")),
        }
    }
}

fn spawn_message(
    port: PortId,
    parameters: &SpawnParameters,
    targets: Arc<[Target]>,
    wait: Wait,
) -> OutgoingMessage {
    let meta = parameters.encode();
    let message = OutgoingMessage::new(port, targets, meta.clone(), wait);
    let payload = Payload::Fixed { meta_len: meta.len() as u16, tail: meta };
    OutgoingMessage { kind: Kind::Spawn, payload, ..message }
}
