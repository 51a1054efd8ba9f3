"""The role of the old machine in a move of its host: it becomes idle and hands over its state.

During the move, all other hosts hold their messages to the host. The host serves the messages that
have already arrived, and the calls within the host that result from them, until it is idle. Then
the actors freeze. To detect messages in transit, every process counts the messages that it has
received, and reports whether all messages that it has sent were received. If two consecutive
reports of all processes are equal, and all processes are idle, no message was in transit.
"""

from __future__ import annotations

import time

from mesh_core._core import Targets
from mesh_core._errors import DrainFailed
from mesh_core._meshes.moved_state import ProcState
from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.wire import proc_id, proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._hosts.agent import HostAgent
    from mesh_core._runtime.runtime import Runtime

__all__ = ["HandOver"]

# The pause between two reports, in seconds.
_PAUSE_S = 0.001
# The number of reports for which messages may be in transit between frozen actors.
_LOOKS_MAX = 50
# The time within which a process replies to such a request, in seconds.
_REPLY_LIMIT_S = 1.0


class HandOver:
    """The hand-over of this host to another machine."""

    def __init__(self, runtime: Runtime, host_agent: HostAgent) -> None:
        self._runtime = runtime
        self._agent = host_agent

    def come_to_rest(self, limit_s: float) -> str | None:
        """Freeze all actors as soon as the host is idle; otherwise return the remaining activity.

        Args:
            limit_s: The maximum time, in seconds.
        """
        until = time.monotonic() + limit_s
        while True:
            _, busy = self._look(is_frozen=False)
            if busy is None:
                busy = self._freeze()
                if busy is None:
                    return None
                self.thaw()
            if time.monotonic() >= until:
                return busy
            time.sleep(_PAUSE_S)

    def thaw(self) -> None:
        """Let all actors continue."""
        self._tell_all("move_thaw")

    def states(self) -> list[ProcState]:
        """Return the state of all processes, whose actors are frozen, without large parts.

        Raises:
            DrainFailed: The state of an actor cannot be moved.
        """
        procs = self._procs()
        found = []
        answers = self._ask(procs, "move_states", limit_s=None)
        for proc, answer in zip(procs, answers, strict=True):
            if answer is None:
                raise DrainFailed(f"process {proc_name(proc)} has died")
            problem, actors, closed = answer
            if problem is not None:
                raise DrainFailed(problem)
            slot = proc & 0xFFFF_FFFF
            found.append(ProcState(slot, self._agent.request_of(slot), actors, closed))
        return found

    def release_actors(self) -> None:
        """Drop all actors, whose states have been read, and expect their processes to exit."""
        self._tell_all("move_release")
        self._agent.flush_output()
        self._await_rest()
        self._agent.expect_end()

    def _freeze(self) -> str | None:
        """Freeze all actors; return the remaining activity, if any."""
        self._tell_all("move_freeze")
        return self._await_rest()

    def _await_rest(self) -> str | None:
        """Wait until no message is in transit; after a limit, return the remaining activity."""
        before: list[int] | None = None
        busy: str | None = None
        for _ in range(_LOOKS_MAX):
            counts, busy = self._look(is_frozen=True)
            if busy is None and counts == before:
                return None
            before = counts if busy is None else None
            time.sleep(_PAUSE_S)
        return busy or "messages keep arriving"

    def _look(self, *, is_frozen: bool) -> tuple[list[int], str | None]:
        """Return the count of messages received by each process, and an activity of one of them."""
        procs = self._procs()
        counts: list[int] = []
        busy: str | None = None
        for proc, answer in zip(procs, self._ask(procs, "move_activity", is_frozen), strict=True):
            if answer is None:
                return [], f"process {proc_name(proc)} does not reply"
            count, what = answer
            counts.append(count)
            busy = busy or what
        engine = self._runtime.engine
        if is_frozen:
            engine.return_credit()
        received, is_quiet = engine.activity()
        counts.append(received)
        if busy is None and not is_quiet:
            busy = "messages are in transit"
        if busy is None and self._agent.is_stopping_any():
            busy = "processes are being stopped"
        return counts, busy

    def _ask(
        self, procs: list[int], method: str, *args: Any, limit_s: float | None = _REPLY_LIMIT_S
    ) -> list[Any]:
        """Call the agents of processes; return their results in order, None for a missing one."""
        if not procs:
            return []
        targets = Targets([(proc, rank) for rank, proc in enumerate(procs)])
        reply = self._runtime.call_agents(targets, method, *args)
        answers = self._runtime.engine.wait(reply, limit_s)
        if answers is None:
            self._runtime.engine.cancel(reply)
            answers = []
        results: list[Any] = [None] * len(procs)
        for answer in answers:
            results[answer.rank] = None if answer.code else value_of(answer)
        return results

    def _tell_all(self, method: str) -> None:
        if procs := self._procs():
            self._runtime.tell_agents(procs, method)

    def _procs(self) -> list[int]:
        host = self._runtime.identity.host
        return [proc_id(host, slot) for slot in self._agent.living()]
