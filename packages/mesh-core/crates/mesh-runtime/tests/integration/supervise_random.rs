//! Supervision under random histories: nothing is lost, nothing is reported twice.

use mesh_runtime::supervise::{
    ChildId, Config, Effect, Event, FailureId, FailureKind, Owner, Policy, ROOT, Restart, Scope,
    Supervisor, Verdict,
};
use mesh_wire::id::PortId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

#[derive(Clone, Debug)]
enum Action {
    Spawn {
        owner: u64,
        restart: u8,
        one_for_all: bool,
    },
    Fail {
        child: usize,
        rank: u32,
        kind: u8,
        is_repeat: bool,
    },
    Observe {
        back: u64,
    },
    EndOwner {
        owner: u64,
        fails: bool,
    },
    Stop {
        child: usize,
    },
    /// Carries out the oldest effect that waits for a reply.
    Reply {
        choice: u8,
    },
    Pass {
        millis: u64,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        2 => (0u64..4, 0u8..4, any::<bool>()).prop_map(|(owner, restart, one_for_all)| {
            Action::Spawn { owner, restart, one_for_all }
        }),
        6 => (0usize..12, 0u32..4, 0u8..4, any::<bool>()).prop_map(
            |(child, rank, kind, is_repeat)| Action::Fail { child, rank, kind, is_repeat }
        ),
        2 => (0u64..4).prop_map(|back| Action::Observe { back }),
        1 => (0u64..4, any::<bool>()).prop_map(|(owner, fails)| Action::EndOwner { owner, fails }),
        1 => (0usize..12).prop_map(|child| Action::Stop { child }),
        6 => (0u8..6).prop_map(|choice| Action::Reply { choice }),
        3 => (0u64..1500).prop_map(|millis| Action::Pass { millis }),
    ];
    proptest::collection::vec(action, 1..120)
}

/// The driver: stores requested effects, and checks reported outcomes.
struct World {
    supervisor: Supervisor,
    now: Duration,
    /// Whether each owner is still running.
    owners: BTreeMap<Owner, bool>,
    failed: BTreeSet<Owner>,
    children: Vec<(ChildId, Owner)>,
    stopped: BTreeSet<ChildId>,
    open: BTreeSet<(FailureId, Owner)>,
    to_do: VecDeque<Effect>,
    last_failure: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            supervisor: Supervisor::new(Config::default()),
            now: Duration::ZERO,
            owners: BTreeMap::new(),
            failed: BTreeSet::new(),
            children: Vec::new(),
            stopped: BTreeSet::new(),
            open: BTreeSet::new(),
            to_do: VecDeque::new(),
            last_failure: 0,
        };
        for owner in 0..4 {
            let owner = PortId(owner);
            world.owners.insert(owner, true);
            world.step(Event::OwnerStarted { owner, has_supervise: owner.0 % 2 == 1 });
        }
        world
    }

    fn step(&mut self, event: Event) {
        let taken = self.may_take(&event);
        let mut out = Vec::new();
        self.supervisor.step(event, self.now, &mut out);
        if let Some((failure, owner)) = taken {
            let is_end = |effect: &Effect| match effect {
                Effect::Settled { failure: f, owner: o, .. } => (*f, *o) == (failure, owner),
                _ => false,
            };
            if self.supervisor.is_open(failure, owner) || out.iter().any(is_end) {
                self.open.insert((failure, owner));
            }
        }
        for effect in out {
            match &effect {
                Effect::Settled { failure, owner, .. } => {
                    assert!(self.open.remove(&(*failure, *owner)), "settled twice: {effect:?}");
                }
                Effect::CallSupervise { owner, .. } => {
                    assert!(self.owners[owner], "an owner that ended was asked");
                    self.to_do.push_back(effect);
                }
                Effect::FailOwner { owner, .. } => {
                    assert_ne!(*owner, ROOT);
                    assert!(self.failed.insert(*owner), "an owner fails once");
                    self.owners.insert(*owner, false);
                }
                Effect::StopChild { child, .. } | Effect::Restart { child, .. } => {
                    assert!(!self.stopped.contains(child), "{effect:?} of what is stopped");
                    self.to_do.push_back(effect);
                }
                Effect::OwnerDone { owner } => {
                    assert!(self.supervisor.children_of(*owner).is_empty(), "children come first");
                }
                Effect::Root { .. } | Effect::WakeAt(_) => {}
            }
        }
        let open =
            self.open.iter().filter(|(failure, owner)| self.supervisor.is_open(*failure, *owner));
        assert_eq!(open.count(), self.open.len(), "a failure vanished without an end");
        assert_eq!(self.supervisor.open_count(), self.open.len());
    }

    /// Returns the failure of an event, which must get an outcome if the supervisor accepts it.
    fn may_take(&self, event: &Event) -> Option<(FailureId, Owner)> {
        let Event::RankFailed { child, failure, .. } = event else { return None };
        let (_, owner) = self.children.iter().find(|(id, _)| id == child)?;
        Some((*failure, *owner))
    }

    fn fail(&mut self, child: usize, rank: u32, kind: u8, is_repeat: bool) {
        let Some((child, _)) = self.children.get(child % self.children.len().max(1)).copied()
        else {
            return;
        };
        if !is_repeat || self.last_failure == 0 {
            self.last_failure += 1;
        }
        let failure = FailureId(self.last_failure);
        let kind = match kind {
            0 => FailureKind::Crash,
            1 => FailureKind::ProcDied,
            other => FailureKind::Exit { normal: other == 2 },
        };
        self.step(Event::RankFailed { child, rank, failure, kind });
    }

    fn reply(&mut self, choice: u8) {
        match self.to_do.pop_front() {
            Some(Effect::CallSupervise { owner, failure, .. }) => {
                let verdict = [Verdict::Handled, Verdict::Unhandled, Verdict::Raised];
                let verdict = verdict[usize::from(choice) % 3];
                self.step(Event::Handled { failure, owner, verdict });
            }
            Some(Effect::Restart { child, ranks }) => {
                for rank in ranks {
                    self.step(Event::RestartDone { child, rank, ok: choice > 0 });
                }
            }
            Some(Effect::StopChild { child, .. }) => {
                self.step(Event::ChildStopped { child });
                self.stopped.insert(child);
            }
            _ => {}
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Spawn { owner, restart, one_for_all } => {
                let child = ChildId(self.children.len() as u64);
                let owner = PortId(owner);
                let all =
                    [Restart::Never, Restart::Temporary, Restart::Transient, Restart::Permanent];
                let scope = if one_for_all { Scope::OneForAll } else { Scope::OneForOne };
                let policy = Policy {
                    restart: all[usize::from(restart)],
                    scope,
                    intensity_max: 2,
                    period: Duration::from_secs(5),
                };
                self.children.push((child, owner));
                self.step(Event::ChildSpawned { owner, child, ranks: 4, policy });
            }
            Action::Fail { child, rank, kind, is_repeat } => {
                self.fail(child, rank, kind, is_repeat)
            }
            Action::Observe { back } => {
                let failure = FailureId(self.last_failure.saturating_sub(back));
                self.step(Event::Observed { failure });
            }
            Action::EndOwner { owner, fails } => {
                let owner = PortId(owner);
                self.step(if fails && owner != ROOT {
                    Event::OwnerFailed { owner }
                } else {
                    Event::OwnerStopping { owner }
                });
                self.owners.insert(owner, false);
            }
            Action::Stop { child } => {
                let Some((child, _)) = self.children.get(child % self.children.len().max(1)) else {
                    return;
                };
                let child = *child;
                self.step(Event::ChildStopping { child });
                self.step(Event::ChildStopped { child });
                self.stopped.insert(child);
            }
            Action::Reply { choice } => self.reply(choice),
            Action::Pass { millis } => {
                self.now += Duration::from_millis(millis);
                self.step(Event::Tick);
            }
        }
    }

    /// Replies to everything and lets all grace periods end: then no failure may be open.
    fn finish(mut self) {
        for owner in 0..4 {
            self.act(Action::EndOwner { owner, fails: false });
        }
        let bound = 10 * (self.children.len() + self.to_do.len() + self.open.len() + 10);
        for _ in 0..bound {
            self.reply(1);
            self.now += Duration::from_secs(1);
            self.step(Event::Tick);
        }
        assert!(self.to_do.is_empty(), "the work never ends: {:?}", self.to_do);
        assert!(self.open.is_empty(), "failures without an end: {:?}", self.open);
        for owner in 0..4 {
            assert!(self.supervisor.children_of(PortId(owner)).is_empty(), "a child outlived");
        }
    }
}

proptest! {
    #[test]
    fn every_failure_is_settled_once_and_no_child_outlives_its_owner(actions in actions()) {
        let mut world = World::new();
        for action in actions {
            world.act(action);
        }
        world.finish();
    }
}
