//! Failure detection for the other hosts of the job.
//!
//! Only the agents of hosts monitor other hosts, because only agents have connections to them. Any
//! byte is a sign of life, so a host that is sending a long frame is alive. Idle hosts are pinged.
//!
//! Silence alone does not prove a death. It is counted in the observer's own running time: a check
//! that is late because the observer was starved or suspended counts as one check. After three
//! silent heartbeats [`Effect::Probe`] requests that the driver read all pending input and report
//! what the transport knows. If the peer's kernel still acknowledges, the machine is up and its
//! agent is starved or stopped; the agent then has until `unresponsive_timeout` expires to respond.
//! If the kernel does not acknowledge, the host is dead.

use super::epoch::first_incarnation;
use super::{Effect, Node};
use crate::events::EventKind;
use crate::fault;
use crate::hash::FastMap;
use crate::mailbox::Closed;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, HostId, PortId, ProcId};
use std::time::Duration;

/// Checks of each host per heartbeat. They bound how late a death is noticed.
const CHECKS_PER_HEARTBEAT: u32 = 4;
/// Heartbeats without a sign of life after which the transport is probed.
const HEARTBEATS_MISSED_MAX: u32 = 3;
/// Heartbeats for which an acknowledgement of the peer's kernel proves that its machine is up.
const HEARTBEATS_ACKNOWLEDGED_MAX: u32 = 2;
/// The minimum age at which an acknowledgement is too old.
///
/// Kernels delay acknowledgements, retransmit after 200 ms at the earliest, and reply to keepalive
/// probes once a second.
const ACKNOWLEDGED_MIN: Duration = Duration::from_millis(1500);

/// How a host is monitored.
#[derive(Clone, Debug)]
pub struct HostWatch {
    /// The interval between signs of life of the host.
    pub heartbeat: Duration,
    /// How long its agent may be silent while its machine acknowledges the data sent to it.
    pub unresponsive_timeout: Duration,
    /// The detail of the fault for callers if the whole host is silent.
    pub exit_report: Bytes,
    /// The detail of the fault for callers if only the machine has responded.
    pub unresponsive: Bytes,
}

impl HostWatch {
    /// Declares a host dead after three silent heartbeats, whether its machine is up or not.
    pub fn strict(heartbeat: Duration, exit_report: Bytes) -> Self {
        Self {
            heartbeat,
            unresponsive_timeout: Duration::ZERO,
            unresponsive: exit_report.clone(),
            exit_report,
        }
    }
}

/// The state of one other host, as far as this process knows.
#[derive(Debug)]
struct MonitoredHost {
    /// Time of the last check; `None` until the first one.
    checked_at: Option<Duration>,
    /// How long the host has been silent, in running time of this process.
    silence: Duration,
    was_active: bool,
    /// Another process replies at its address and reports that the host no longer exists.
    ///
    /// Such replies are not a sign of life.
    is_gone: bool,
    watch: HostWatch,
}

impl MonitoredHost {
    fn new(watch: HostWatch) -> Self {
        let (checked_at, silence) = (None, Duration::ZERO);
        Self { checked_at, silence, was_active: true, is_gone: false, watch }
    }

    fn check_period(&self) -> Duration {
        self.watch.heartbeat / CHECKS_PER_HEARTBEAT
    }

    /// Checks the host once; a late check counts as one.
    fn check(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.checked_at.unwrap_or(now));
        self.checked_at = Some(now);
        if std::mem::take(&mut self.was_active) {
            self.silence = Duration::ZERO;
        } else {
            self.silence += passed.min(self.check_period());
        }
    }

    fn is_suspect(&self) -> bool {
        self.silence >= self.watch.heartbeat * HEARTBEATS_MISSED_MAX
    }

    fn is_acknowledged(&self, acknowledged_ago: Option<Duration>) -> bool {
        let limit = ACKNOWLEDGED_MIN.max(self.watch.heartbeat * HEARTBEATS_ACKNOWLEDGED_MAX);
        !self.is_gone && acknowledged_ago.is_some_and(|ago| ago < limit)
    }
}

/// The hosts that this process monitors, and the hosts that it knows to be dead.
#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    hosts: FastMap<HostId, MonitoredHost>,
    next_check: Option<Duration>,
    dead: FastMap<HostId, Bytes>,
    /// The epoch of each host whose machine is not the first.
    epochs: FastMap<HostId, u32>,
    /// Watchers of processes on each host.
    ///
    /// The host notifies them as long as it lives; when it dies, this process has to notify them.
    watchers: FastMap<HostId, Vec<(u32, Address)>>,
}

impl FailureDetector {
    /// Returns the exit report of a dead host, the fault detail for everything that waits for it.
    pub(super) fn exit_report(&self, host: HostId) -> Option<&Bytes> {
        self.dead.get(&host)
    }

    pub(super) fn epoch(&self, host: HostId) -> u32 {
        self.epochs.get(&host).copied().unwrap_or(0)
    }

    /// Stops monitoring a host. Returns its exit report.
    pub(super) fn stop_monitoring(&mut self, host: HostId) -> Bytes {
        self.hosts.remove(&host).map(|monitored| monitored.watch.exit_report).unwrap_or_default()
    }

    /// Notes that another machine has replaced a dead one.
    pub(super) fn host_replaced(&mut self, host: HostId, epoch: u32) {
        self.dead.remove(&host);
        self.epochs.insert(host, epoch);
    }

    /// Registers a watcher of a process on another host.
    pub(super) fn add_watcher(&mut self, proc: ProcId, watcher: Address) {
        let watchers = self.watchers.entry(proc.host).or_default();
        let watcher = (proc.slot, watcher);
        if !watchers.contains(&watcher) {
            watchers.push(watcher);
        }
    }

    /// Returns the watchers of the processes of another host, with the slot of each process.
    pub(super) fn watchers_on(&self, host: HostId) -> Vec<(u32, Address)> {
        self.watchers.get(&host).cloned().unwrap_or_default()
    }

    pub(super) fn trim(&mut self) {
        self.watchers.values_mut().for_each(Vec::shrink_to_fit);
    }

    /// Whether this process would detect the death of the host itself.
    pub(super) fn monitors(&self, host: HostId) -> bool {
        self.hosts.contains_key(&host)
    }

    /// Notes that a host has itself reported the end of one of its processes.
    pub(super) fn note_reported_death(&mut self, frame: &Frame) {
        let proc = frame.head.from.proc;
        if let Some(watchers) = self.watchers.get_mut(&proc.host) {
            watchers.retain(|watcher| *watcher != (proc.slot, frame.head.to));
        }
    }

    pub(super) fn next_check(&self) -> Option<Duration> {
        self.next_check
    }
}

impl Node {
    /// Starts to monitor another host.
    pub fn monitor_host(&mut self, host: HostId, watch: HostWatch) {
        self.failure_detector.hosts.insert(host, MonitoredHost::new(watch));
        self.failure_detector.next_check = Some(Duration::ZERO);
    }

    /// Returns how long a host has been silent, if that is unusual.
    ///
    /// A live host on an idle machine is never silent for that long.
    pub fn silence_of(&self, host: HostId) -> Option<Duration> {
        let monitored = self.failure_detector.hosts.get(&host)?;
        monitored.is_suspect().then_some(monitored.silence)
    }

    /// Reports what the transport knows about a host, in response to [`Effect::Probe`].
    ///
    /// This is how long ago its kernel last acknowledged anything, if that is known. The driver has
    /// received all pending input.
    pub fn probed(&mut self, host: HostId, acknowledged_ago: Option<Duration>) {
        let Some(monitored) = self.failure_detector.hosts.get(&host) else { return };
        if monitored.was_active || !monitored.is_suspect() {
            return;
        }
        let is_up = monitored.is_acknowledged(acknowledged_ago);
        if is_up && monitored.silence < monitored.watch.unresponsive_timeout {
            return;
        }
        if let Some(MonitoredHost { watch, .. }) = self.failure_detector.hosts.remove(&host) {
            self.host_died(host, if is_up { watch.unresponsive } else { watch.exit_report });
        }
    }

    /// Declares a host dead now, or notes that it has left: everything that waits for it fails.
    pub fn declare_host_dead(&mut self, host: HostId, exit_report: Bytes) {
        self.failure_detector.hosts.remove(&host);
        self.host_died(host, exit_report);
    }

    /// Notes that bytes arrived on a connection, even if only a part of a frame.
    pub fn note_activity(&mut self, link: super::LinkId) {
        if let Some(proc) = self.peer_of(link)
            && let Some(monitored) = self.failure_detector.hosts.get_mut(&proc.host)
        {
            monitored.was_active = !monitored.is_gone;
        }
    }

    /// Notes whether the host itself responds.
    ///
    /// Otherwise another process responds at the address of a host that no longer exists.
    pub(super) fn note_responder(&mut self, host: HostId, is_itself: bool) {
        if let Some(monitored) = self.failure_detector.hosts.get_mut(&host) {
            monitored.is_gone = !is_itself;
            monitored.was_active = is_itself;
        }
    }

    pub(super) fn check_hosts(&mut self, now: Duration) {
        if self.failure_detector.next_check.is_none_or(|at| at > now) {
            return;
        }
        let mut silent = Vec::new();
        let mut suspects = Vec::new();
        let mut next: Option<Duration> = None;
        for (host, monitored) in &mut self.failure_detector.hosts {
            monitored.check(now);
            if monitored.is_suspect() {
                suspects.push(*host);
            }
            let period = monitored.check_period();
            if monitored.silence >= period {
                silent.push(*host);
            }
            next = Some(next.map_or(now + period, |next| next.min(now + period)));
        }
        self.failure_detector.next_check = next;
        let mut all: Vec<(HostId, Duration)> = self
            .failure_detector
            .hosts
            .iter()
            .map(|(host, monitored)| (*host, monitored.watch.heartbeat))
            .collect();
        all.sort_unstable();
        for (host, heartbeat) in all {
            self.check_relayed(host, heartbeat);
        }
        silent.sort_unstable();
        for host in silent {
            self.send_ping(host.agent());
        }
        suspects.sort_unstable();
        self.effects.extend(suspects.into_iter().map(Effect::Probe));
    }

    /// Fails everything that waits for a host, and notifies the watchers on its behalf.
    pub(super) fn host_died(&mut self, host: HostId, exit_report: Bytes) {
        if self.failure_detector.dead.contains_key(&host) {
            return;
        }
        self.failure_detector.dead.insert(host, exit_report.clone());
        let agent = host.agent();
        let living_from = first_incarnation(self.failure_detector.epoch(host) + 1);
        self.discard_held(host);
        self.discard_peer(agent, living_from, fault::HOST_DIED, exit_report.clone());
        for (slot, watcher) in self.failure_detector.watchers.remove(&host).unwrap_or_default() {
            let mut head = Head::new(
                Kind::Died,
                watcher,
                Address { proc: ProcId { host, slot }, port: PortId::NONE },
            );
            (head.rank, head.flags) = (living_from - 1, fault::HOST_DIED);
            self.dispatch(Frame { head, tail: exit_report.clone() });
        }
        for proc in self.peers_on(host) {
            if self.peer(proc).living_from < living_from {
                self.discard_peer(proc, living_from, fault::HOST_DIED, exit_report.clone());
            }
        }
        let from = Address { proc: agent, port: PortId::NONE };
        let to = Address { proc: self.config.me, port: PortId::AGENT };
        let mut head = Head::new(Kind::Died, to, from);
        (head.rank, head.flags) = (living_from - 1, fault::HOST_DIED);
        self.notify_agent(Frame { head, tail: exit_report });
        self.record_peer(EventKind::Died, agent);
        // Frames that would have been forwarded by the host, and pieces that waited for it.
        self.retransmit_relayed();
        self.send_pieces();
        self.note_capacity_anywhere();
    }

    /// Refuses a frame for a dead host; returns the frame if the host is not dead.
    pub(super) fn refuse_dead(&mut self, frame: Frame) -> Option<Frame> {
        let Some(exit_report) = self.failure_detector.exit_report(frame.head.to.proc.host) else {
            return Some(frame);
        };
        let detail = exit_report.clone();
        let head = frame.head;
        if head.kind == Kind::Watch {
            let proc = ProcId { host: head.to.proc.host, slot: head.rank };
            let mut died = Head::new(Kind::Died, head.from, Address { proc, port: PortId::NONE });
            died.rank = first_incarnation(self.failure_detector.epoch(proc.host) + 1) - 1;
            died.flags = fault::HOST_DIED;
            self.dispatch(Frame { head: died, tail: detail });
        } else {
            self.refuse(&frame, &Closed { code: fault::HOST_DIED, detail });
        }
        None
    }
}
