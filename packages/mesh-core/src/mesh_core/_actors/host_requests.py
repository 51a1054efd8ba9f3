"""Requests that only the agent of a host serves: routes, deaths of hosts, moves, processes."""

from __future__ import annotations

import threading
import time

from mesh_core._calls.reduction import serve_reduction
from mesh_core._errors import DrainFailed
from mesh_core._logging.python_logging import warn
from mesh_core._runtime.late_reply import reply_from_thread
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.wire import proc_id
from mesh_core._supervision.failure import host_exit_report
from mesh_core._supervision.lifecycle import ENDED_BY_OWNER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._core import Engine, Message
    from mesh_core._logging.line import LogLine
    from mesh_core._meshes.start_request import StartRequest
    from mesh_core._runtime.runtime import Runtime

__all__ = ["LATER", "HostRequests"]

# The return value of a handler that replies later.
LATER = object()
# Maximum time to write a reply to a host before that host is treated as lost.
_ANSWER_LIMIT_S = 0.1


class HostRequests:
    """Handlers of the requests to the agent of a host; a part of `Agent`."""

    _runtime: Runtime
    _engine: Engine
    # Whether another machine continues this host.
    _has_handed_over = False

    def do_routes(
        self, _message: Message, ways: dict[int, tuple[list[str], list[str], bool]]
    ) -> None:
        """Store the addresses of hosts; connect to the hosts that cannot connect to this one."""
        for host, (addresses, gateway, is_only_way) in ways.items():
            self._engine.set_route(host, addresses, gateway)
            if is_only_way:
                self._engine.dial(proc_id(host, 0))

    def do_host_gone(self, _message: Message, host: int, exit_report: bytes) -> None:
        """Handle the death of another host."""
        self._engine.declare_host_dead(host, exit_report)

    def do_host_leaving(self, message: Message, grace_s: float) -> None:
        """Record that a worker was requested to shut down, and the deadline of its host."""
        self._runtime.draining_hosts[message.from_proc >> 32] = time.monotonic() + grace_s

    def do_host_left(self, message: Message, host_name: str, why: str) -> Any:
        """Handle a worker that leaves the job unexpectedly: its host is lost immediately."""
        host = message.from_proc >> 32
        report = host_exit_report(self._runtime, host_name, why)
        # The worker stops its processes after the reply. Their last messages may arrive before the
        # host is marked as lost.
        self._runtime.withdrawn_hosts[host] = report

        def lose() -> None:
            # The worker waits for the reply, which cannot reach it once its host is marked as lost.
            self._engine.reply(message, 0, *encode_value(None, 1 << 60))
            self._engine.drain(_ANSWER_LIMIT_S)
            self._host_left(host, report)

        threading.Thread(target=lose, name=f"mesh-lost-{host}", daemon=True).start()
        return LATER

    def _host_left(
        self, host: int, report: bytes | None, *, epoch: int | None = None, why: str = ""
    ) -> None:
        self._runtime.draining_hosts.pop(host, None)
        place = self._runtime.places.withdrew(host, epoch)
        if place is not None:
            report = report or host_exit_report(self._runtime, place.host_name, why)
            self._engine.declare_host_dead(host, report)

    def do_journal(self, _message: Message, changes: dict[int, bytes | None]) -> None:
        """Update the replicated journal of the resources that the program owns."""
        kept = self._runtime.kept
        for number, entry in changes.items():
            if entry is None:
                kept.pop(number, None)
            else:
                kept[number] = entry

    def do_read_journal(self, _message: Message) -> dict[int, bytes]:
        """Return all entries of the journal."""
        return self._runtime.kept

    def do_host_back(
        self, _message: Message | None, host: int, epoch: int, has_moved: bool = False
    ) -> None:
        """Record that a new machine serves as a host, and notify the processes of this host.

        Args:
            host: The number of the host.
            epoch: The epoch of the machine.
            has_moved: Whether it continues the processes of the previous machine; calls to them
                then stay pending.
        """
        self._runtime.withdrawn_hosts.pop(host, None)
        self._runtime.draining_hosts.pop(host, None)
        # Set the epoch first, for processes that start at this moment.
        self._runtime.host_epochs[host] = epoch
        if has_moved:
            self._engine.host_moved(host, epoch)
        else:
            self._engine.host_replaced(host, epoch)
        if self._runtime.host_agent is not None:
            for slot in self._runtime.host_agent.living():
                proc = proc_id(self._runtime.identity.host, slot)
                self._runtime.tell_agent(proc, "host_back", host, epoch)

    def do_replace_host(
        self, message: Message, host: int, worker: str | None, may_return: bool, is_urgent: bool
    ) -> Any:
        """Replace a dead host with another machine; reply when the machine has joined."""
        self._runtime.draining_hosts.pop(host, None)

        def replace() -> None:
            self._runtime.places.replace(host, worker, may_return=may_return, is_urgent=is_urgent)

        reply_from_thread(self._runtime, message, f"mesh-replace-{host}", replace)
        return LATER

    def do_drain_host(
        self, message: Message, host: int, worker: str | None, timeout_s: float
    ) -> Any:
        """Move a host to another machine; reply when it has moved."""

        def drain() -> None:
            self._runtime.places.drain(host, worker, timeout_s)

        reply_from_thread(self._runtime, message, f"mesh-drain-{host}", drain)
        return LATER

    def do_hold_host(self, message: Message, host: int) -> Any:
        """Hold messages for a host that is about to move; reply when it has all earlier ones."""
        host_agent = self._runtime.host_agent
        assert host_agent is not None
        reply_from_thread(
            self._runtime, message, f"mesh-hold-{host}", lambda: host_agent.hold(host)
        )
        return LATER

    def do_release_host(self, _message: Message, host: int) -> None:
        """Send the messages that were held for a host."""
        self._engine.release_host(host)

    def do_move_requests(self, _message: Message) -> dict[int, StartRequest]:
        """Return the requests that started the processes of this host, by slot."""
        assert self._runtime.host_agent is not None
        return self._runtime.host_agent.start_requests()

    def do_move_rest(self, message: Message, limit_s: float) -> Any:
        """Freeze the processes of this host; reply with their remaining activity, if any."""
        host_agent = self._runtime.host_agent
        assert host_agent is not None
        reply_from_thread(
            self._runtime, message, "mesh-rest", lambda: host_agent.hand_over.come_to_rest(limit_s)
        )
        return LATER

    def do_move_cancel(self, _message: Message) -> None:
        """Let the processes of this host continue, because it does not move."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.hand_over.thaw()

    def do_move_hand_over(self, message: Message) -> Any:
        """Reply with the state of the processes, or with the reason why they cannot move."""
        host_agent = self._runtime.host_agent
        assert host_agent is not None

        def states() -> object:
            try:
                return None, host_agent.hand_over.states()
            except DrainFailed as error:
                return str(error), ()

        reply_from_thread(self._runtime, message, "mesh-hand-over", states)
        return LATER

    def do_move_release_actors(self, message: Message) -> Any:
        """Drop the actors, whose states have been read; reply once they are unreferenced."""
        host_agent = self._runtime.host_agent
        assert host_agent is not None
        self._has_handed_over = True
        reply_from_thread(
            self._runtime, message, "mesh-release", lambda: host_agent.hand_over.release_actors()
        )
        return LATER

    def do_move_start(self, message: Message, requests: dict[int, StartRequest]) -> Any:
        """Start the processes of the previous machine of this host that are not started yet."""
        host_agent = self._runtime.host_agent
        assert host_agent is not None
        reply_from_thread(
            self._runtime, message, "mesh-start", lambda: host_agent.start_moved(requests)
        )
        return LATER

    def do_move_failed(self, _message: Message, slot: int, why: str) -> None:
        """Kill a process whose actors could not be restored."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.kill(slot, why)

    def do_log_lines(self, _message: Message, lines: list[LogLine]) -> None:
        """Print output of the processes of another host."""
        assert self._runtime.host_agent is not None
        for line in lines:
            self._runtime.host_agent.output.show(line)

    def do_warn(self, _message: Message, text: str) -> None:
        """Log a warning of another host, in the program."""
        warn(text)

    def do_leave(self, _message: Message, is_shutdown: bool) -> None:
        """Make this host leave the job; reply immediately to confirm."""
        self._runtime.lifecycle.leave(ENDED_BY_OWNER if is_shutdown else 0)

    def do_read_recording(self, message: Message, slot: int, incarnation: int) -> Any:
        """Return the files of the log of a process of this host, which may have died."""
        # Few programs record actors.
        from mesh_core._recording.transfer import send_recording  # noqa: PLC0415

        send_recording(self._runtime, message, slot, incarnation)
        return LATER

    def do_recorded_actors(self, message: Message) -> Any:
        """Return the recorded actors of this host."""
        from mesh_core._recording.transfer import send_recorded_actors  # noqa: PLC0415

        send_recorded_actors(self._runtime, message)
        return LATER

    def do_case_wanted(
        self,
        _message: Message,
        proc: int,
        incarnation: int,
        port: int,
        number: int,
        description: str,
    ) -> None:
        """Save a case of an actor of another process, because the actor has failed."""
        from mesh_core._recording.collector import Failure, case_collector  # noqa: PLC0415

        case_collector(self._runtime).want(Failure(proc, incarnation, port, number, description))

    def do_reduce(self, message: Message, body: bytes, buffers: list[Any]) -> Any:
        """Call actors of some hosts, combine their results, and reply with the result."""
        serve_reduction(self._runtime, message, body, buffers)
        return LATER

    def do_reserve(self, _message: Message, count: int) -> tuple[int, str]:
        """Reserve slots; return the first slot and the name of the host."""
        assert self._runtime.host_agent is not None
        return self._runtime.host_agent.reserve(count), self._runtime.identity.host_name

    def do_preload(self, _message: Message, modules: tuple[str, ...]) -> None:
        """Import modules for processes that start later."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.preload(modules)

    def do_start(self, _message: Message, request: Any) -> None:
        """Start processes."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.start(request)

    def do_stop(self, message: Message, slots: list[int], grace_s: float, is_drained: bool) -> Any:
        """Stop processes; reply when they have exited."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.stop(message, slots, grace_s, is_drained)
        return LATER

    def do_end_silent(self, _message: Message, slot: int, why: str) -> None:
        """Kill a process that has responded before and no longer does."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.end_silent(slot, why)

    def do_conditions(self, _message: Message, slots: list[int]) -> list[tuple[str, str]]:
        """Describe the state of processes of this host that have not replied."""
        assert self._runtime.host_agent is not None
        return [self._runtime.host_agent.condition(slot) for slot in slots]

    def do_signal(self, _message: Message | None, slot: int, number: int) -> None:
        """Send a signal to a process."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.signal(slot, number)

    def do_replace(self, _message: Message, slot: int, request: StartRequest | None) -> int | None:
        """Start a new process in the slot of a dead one; return None if the process is alive."""
        assert self._runtime.host_agent is not None
        return self._runtime.host_agent.replace(slot, request)
