//! Determines which senders may not have been notified of the last death in a slot.
//!
//! The agent of the host reports a death, and the agent of the receiver forwards the report to
//! processes of another host. That takes milliseconds while both agents run. A stopped agent
//! neither reports nor forwards anything, and its host is not declared dead before
//! `unresponsive_timeout_s`. Until the agent resumes, a new process may take the slot of the dead
//! one, and a sender that was not notified of the death may send to the new process and be notified
//! afterwards.

use crate::message::Life;
use mesh_runtime::hash::FastMap;
use mesh_wire::id::{HostId, ProcId};
use std::time::Duration;

/// The maximum delay of the report of a death to each sender while the agents of both hosts run.
const REPORT_MAX: Duration = Duration::from_secs(2);

/// A period during which the agent of a host is stopped.
#[derive(Debug)]
struct AgentStall {
    host: HostId,
    from: Duration,
    until: Duration,
}

/// The notification of a process about the replacement of a dead one.
#[derive(Debug)]
struct Replacement {
    incarnation: u32,
    notified_at: Duration,
}

/// A message, and the process of its receiver when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) sender: Life,
    pub(super) sender_host: HostId,
    pub(super) proc: ProcId,
    pub(super) incarnation: u32,
    pub(super) at: Duration,
}

/// The deaths of a world, and the notifications that its processes must have received.
#[derive(Debug, Default)]
pub(super) struct DeathReports {
    /// The time of the last death in each slot.
    last_death: FastMap<ProcId, Duration>,
    /// The stalls in the order in which they began.
    agent_stalls: Vec<AgentStall>,
    /// By the process that was notified, and the slot.
    replacements: FastMap<(Life, ProcId), Replacement>,
}

impl DeathReports {
    pub(super) fn died(&mut self, proc: ProcId, now: Duration) {
        self.last_death.insert(proc, now);
    }

    pub(super) fn agent_stalled(&mut self, host: HostId, from: Duration, until: Duration) {
        self.agent_stalls.push(AgentStall { host, from, until });
    }

    pub(super) fn replaced(
        &mut self,
        owner: Life,
        proc: ProcId,
        incarnation: u32,
        notified_at: Duration,
    ) {
        self.replacements.insert((owner, proc), Replacement { incarnation, notified_at });
    }

    /// Whether any process has died in a slot.
    pub(super) fn has_died(&self, proc: ProcId) -> bool {
        self.last_death.contains_key(&proc)
    }

    /// Whether a message may fail with the death of a previous process in its receiver's slot, or
    /// be lost with it, because the sender may not have been notified of that death.
    pub(super) fn may_be_unreported(&self, sent: &Sent) -> bool {
        let hosts = [sent.proc.host, sent.sender_host];
        let last_death = self.last_death.get(&sent.proc);
        last_death.is_some_and(|died_at| self.due(*died_at, hosts) >= sent.at)
            && !self.is_known_replacement(sent)
    }

    /// Whether the sender already knew that the incarnation it sends to has replaced another.
    fn is_known_replacement(&self, sent: &Sent) -> bool {
        let notified = self.replacements.get(&(sent.sender, sent.proc));
        notified.is_some_and(|notified| {
            notified.incarnation >= sent.incarnation && notified.notified_at <= sent.at
        })
    }

    /// The time at which the report of a death is due; periods in which an agent is stopped do not
    /// count.
    fn due(&self, died_at: Duration, hosts: [HostId; 2]) -> Duration {
        let (mut due, mut counted_until) = (died_at + REPORT_MAX, died_at);
        for stall in self.agent_stalls.iter().filter(|stall| hosts.contains(&stall.host)) {
            let from = stall.from.max(counted_until);
            if from < due && from < stall.until {
                due += stall.until - from;
                counted_until = stall.until;
            }
        }
        due
    }
}
