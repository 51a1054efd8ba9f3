"""The agents of the hosts that a simulated program is attached to."""

from __future__ import annotations

from functools import partial

from mesh_core._configuration.config import effective, inherit
from mesh_core._hosts.agent import HostAgent
from mesh_core._hosts.attach_request import HOLD, RELEASE, SERVE, AttachReply, AttachRequest
from mesh_core._hosts.packed_requests import unpack_requests
from mesh_core._program.assembly import assemble
from mesh_core._runtime.epoch import EPOCH_SHIFT
from mesh_core._runtime.identity import Identity
from mesh_core._simulation.host import SimulatedHost, SimulatedJobDir
from mesh_core._simulation.process import SimulatedProcess
from mesh_core._simulation.program import DIRECTORY
from mesh_core._simulation.scheduler import running_thread
from mesh_core._supervision.lifecycle import Lifecycle
from mesh_core._workers.orphan_grace import HEARTBEATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mesh_core._runtime.runtime import Runtime
    from mesh_core._simulation.world import World

__all__ = ["request_attach", "start_host"]

# The time that a worker takes to reply.
_REPLY_S = 0.005


class _SessionLifecycle(Lifecycle):
    """The end of a host: it leaves the job."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._process = process
        self._has_left = False
        self.runtime: Runtime

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """End the processes of the host, and then its agent."""
        if not self._has_left:
            self._has_left = True
            self._process.start(lambda: self._end(status, is_at_once), "mesh-leave")

    def root_died(self) -> None:
        """Leave the job, whose program is lost."""
        self.leave()

    def _end(self, status: int, is_at_once: bool) -> None:
        assert self.runtime.host_agent is not None
        self.runtime.host_agent.close(0.0 if is_at_once else effective().stop_grace_s)
        self.runtime.engine.close()
        self._process.exit(status)


def start_host(
    world: World,
    host: int,
    name: str,
    epoch: int,
    settings: Mapping[str, Any],
    lease_s: float,
    processes: bytes = b"",
) -> None:
    """Start the agent of a host.

    Args:
        world: The cluster.
        host: The number of the host in the job.
        name: Its host name.
        epoch: The number of machines that served as this host before.
        settings: The configuration of the program.
        lease_s: Seconds without a sign of life of the program after which the host leaves.
        processes: The processes to start immediately, as in `AttachRequest`.
    """
    process = SimulatedProcess(world, host, 0, epoch << EPOCH_SHIFT)
    process.name = name
    world.agents[host] = process

    def serve() -> None:
        inherit(settings)
        lifecycle = _SessionLifecycle(process)
        identity = Identity(
            host=host,
            host_name=name,
            slot=0,
            incarnation=epoch << EPOCH_SHIFT,
            job=world.job,
            token=world.token,
            directory=DIRECTORY,
        )
        runtime = lifecycle.runtime = assemble(identity, lifecycle, process.engine)
        runtime.host_agent = HostAgent(
            runtime,
            identity.incarnation + 1,
            local_host=partial(SimulatedHost, world, process),
            job_dir=SimulatedJobDir,
        )
        runtime.start_agent()
        if processes:
            runtime.host_agent.start_early(unpack_requests(processes))
        silence_s = max(lease_s, effective().heartbeat_s) / HEARTBEATS
        unresponsive_s = effective().unresponsive_timeout_s
        runtime.engine.monitor_host(0, silence_s, unresponsive_s, b"", b"")

    process.on_end = lambda _status: world.host_ended(host, process)
    process.start(serve, "mesh-session")


def request_attach(
    addresses: Sequence[str],
    _keys: object,
    body: bytes,
    _limit_s: float,
    _gateway: Sequence[str] = (),
) -> tuple[bool, bytes, bool]:
    """Reply to a program as a worker does: a machine is available at every address.

    Raises:
        OSError: The machine cannot be reached.
    """
    thread = running_thread()
    assert thread is not None
    process: Any = thread.process
    world: World = process.world
    thread.scheduler.wait_s(_REPLY_S)
    request = AttachRequest.decode(body)
    name = addresses[0].partition(":")[0]
    if request.verb == SERVE:
        if not world.is_reachable(request.host):
            raise OSError("the network is partitioned")
        start_host(
            world,
            request.host,
            name,
            request.epoch,
            request.config,
            request.lease_s,
            request.processes,
        )
        return True, AttachReply(name, f"{name}-{request.epoch}").encode().encode(), False
    if request.verb in (HOLD, RELEASE):
        return True, name.encode(), False
    return False, b"a simulated worker serves no additional sessions", True
