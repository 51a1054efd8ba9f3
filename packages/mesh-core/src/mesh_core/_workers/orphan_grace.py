"""The orphan grace period: a session keeps the job's processes for a successor of the controller.

It applies only if the job has requested it. The session then accepts requests until it ends.
It refuses clients that request the worker for another job. A client that authenticates as a
controller of this job takes it over once the previous controller is lost.
"""

from __future__ import annotations

import threading
import time

from mesh_core._configuration.config import effective
from mesh_core._core import Targets
from mesh_core._hosts.take_over_request import Refusal, TakeOverReply, TakeOverRequest
from mesh_core._runtime.epoch import EPOCH_MAX, EPOCH_SHIFT
from mesh_core._serialization.wire import HOST_DIED, proc_id
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._core import IncomingRequest, Listener
    from mesh_core._hosts.attach_request import AttachRequest
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._workers.additional_sessions import SessionRedirector

__all__ = ["HEARTBEATS", "OrphanGrace", "exit_report"]

# The number of heartbeats without a sign of life after which a lease expires.
HEARTBEATS = 3
_LOOK_S = 1.0
# A process that does not reply for this time runs code that blocks the interpreter.
_GIVE_UP_S = 2.0


class OrphanGrace:
    """The session's state of the controllers of its job.

    Args:
        runtime: The runtime of the session's host.
        listener: The source of requests of successors.
        redirector: Redirects requests for additional sessions.
        request: The attach request of the first controller.
        leave: Ends the session.
    """

    def __init__(
        self,
        runtime: Runtime,
        listener: Listener,
        redirector: SessionRedirector,
        request: AttachRequest,
        leave: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._listener = listener
        self._redirector = redirector
        self._hold_s = request.orphan_grace_s
        self._leave = leave
        self._lock = threading.Lock()
        self._owner = request.owner
        self._generation = request.generation
        self._claim = ""
        # The end of the orphan grace period; None while the controller is alive.
        self._until: float | None = None

    def start(self) -> None:
        """Start to serve requests."""
        threading.Thread(target=self._run, name="mesh-hold", daemon=True).start()

    def begin(self) -> None:
        """Start the orphan grace period after the loss of the controller; returns immediately."""
        threading.Thread(target=self._begin, name="mesh-hold-begin", daemon=True).start()

    def _begin(self) -> None:
        """Let the processes abandon the calls of the lost controller, and then start the period."""
        runtime, agent = self._runtime, self._runtime.host_agent
        assert agent is not None
        host = runtime.identity.host
        procs = [(proc_id(host, slot), slot) for slot in agent.living()]
        if procs:
            # The notification of the loss precedes this call, so a process that replies has handled
            # it.
            reply = runtime.call_agents(Targets(procs), "wake", timeout=_GIVE_UP_S)
            runtime.engine.wait(reply, None)
        with self._lock:
            self._until = time.monotonic() + self._hold_s

    def _run(self) -> None:
        while True:
            with self._lock:
                left_s = None if self._until is None else self._until - time.monotonic()
            if left_s is not None and left_s <= 0:
                self._leave()
                return
            caller = self._listener.next_request(
                _LOOK_S if left_s is None else min(left_s, _LOOK_S)
            )
            if caller is not None and not self._redirector.takes(caller):
                is_taken, text = self._decide(caller)
                try:
                    caller.reply(is_taken, text.encode())
                except OSError:
                    # The successor repeats the request, or its lease expires like the lease of
                    # the previous controller.
                    continue

    def _decide(self, caller: IncomingRequest) -> tuple[bool, str]:
        request = TakeOverRequest.decode(caller.body)
        with self._lock:
            if request is None:
                what = "serves" if self._until is None else "holds"
                return False, f"it {what} a job of {self._owner}"
            why = self._refusal(caller, request)
            if why is not None:
                return False, why.encode()
            if request.claim != self._claim:
                self._generation = max(self._generation + 1, request.generation)
                self._claim, self._owner, self._until = request.claim, request.owner, None
                self._expect(request.lease_s)
            identity = self._runtime.identity
            grant = TakeOverReply(
                identity.job,
                identity.token,
                identity.host,
                identity.host_name,
                identity.incarnation >> EPOCH_SHIFT,
                self._generation,
            )
            return True, grant.encode()

    def _refusal(self, caller: IncomingRequest, request: TakeOverRequest) -> Refusal | None:
        if caller.role != "controller":
            why = "only credentials of a controller of the job can take it over"
            return Refusal(why, is_final=True)
        if request.job not in (None, self._runtime.identity.job):
            return Refusal(f"it serves another job, of {self._owner}", is_final=True)
        if request.claim == self._claim and self._until is None:
            return None
        if request.job is not None and request.generation <= self._generation:
            why = f"{self._owner} has taken the job over as generation {self._generation}"
            return Refusal(why, is_final=True, is_rival=self._until is None)
        if self._generation == EPOCH_MAX:
            return Refusal(f"it was taken over {EPOCH_MAX} times, the maximum", is_final=True)
        if self._until is None:
            return Refusal(f"the job is run by {self._owner}, which is alive", is_final=False)
        return None

    def _expect(self, lease_s: float) -> None:
        engine = self._runtime.engine
        self._runtime.agent.do_host_back(None, 0, self._generation)
        lost = exit_report(self._owner)
        unresponsive_timeout_s = effective().unresponsive_timeout_s
        engine.monitor_host(0, lease_s / HEARTBEATS, unresponsive_timeout_s, lost, lost)


def exit_report(owner: str) -> bytes:
    """Return the encoded failure for callers that wait for something of a lost controller."""
    reason = "the program that ran the job is lost: its processes are held for a successor"
    return FailureDetail(0, HOST_DIED, {"host": owner, "reason": reason}).encode()
