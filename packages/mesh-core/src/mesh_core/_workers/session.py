"""One job on a worker, from the request to serve it until the host has left the job."""

from __future__ import annotations

import hmac
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from mesh_core._configuration.config import effective, inherit
from mesh_core._core import Listener
from mesh_core._hosts.agent import HostAgent
from mesh_core._hosts.attach_request import HOLD, RELEASE, SERVE, AttachReply, AttachRequest
from mesh_core._hosts.packed_requests import unpack_requests
from mesh_core._hosts.take_over_request import Refusal, TakeOverRequest
from mesh_core._hosts.versions import differences, refusal
from mesh_core._processes.job_dir import JobDir
from mesh_core._processes.template_cache import TemplateCacheClient
from mesh_core._program.assembly import assemble
from mesh_core._runtime.epoch import EPOCH_SHIFT
from mesh_core._runtime.identity import Identity
from mesh_core._runtime.job_credentials import set_credentials
from mesh_core._supervision.lifecycle import ENDED_BY_OWNER, Lifecycle
from mesh_core._system import kernel as _kernel
from mesh_core._system.signals import on_signals
from mesh_core._workers.additional_sessions import SessionRedirector
from mesh_core._workers.orphan_grace import HEARTBEATS, OrphanGrace, exit_report
from mesh_core._workers.standby_template import StandbyTemplate, extend_path
from mesh_core._workers.status import report
from mesh_core._workers.worker_keys import worker_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import IncomingRequest, Keys
    from mesh_core._runtime.runtime import Runtime

__all__ = ["main"]

# The process of the program.
_ROOT = 0
_LOOK_S = 1.0
# The maximum time for which a reply waits for the imports of a host that is about to move here.
_WARM_LIMIT_S = 5.0
# The time that the owner may take to acknowledge the withdrawal, on a busy machine. An
# owner that has left or does not know this host yet never replies, and schedulers do not wait long.
_OWNER_HEARS_S = 2.0
# The time that the last reply may take to reach the owner.
_LAST_REPLY_S = 0.5

_over = threading.Event()
_status = 0
_is_at_once = False
# Whether this is an additional session of the worker.
_is_additional = False
# Why the host leaves the job without a request of its owner.
_why_withdrawn: str | None = None
# The runtime that serves the job, once it exists.
_served: Runtime | None = None
# Keeps the job for a successor of its program, if the job requests it.
_orphan_grace: OrphanGrace | None = None


def leave(status: int = 0, *, is_at_once: bool = False) -> None:
    """End the session: its host leaves the job.

    Args:
        status: The exit status of the session.
        is_at_once: Whether to kill the processes of the job without reporting their exits.
    """
    global _is_at_once, _status
    _status, _is_at_once = status, is_at_once
    _over.set()


def withdraw(worker: Inheritance) -> None:
    """End the session although its owner may need it, because the worker is ending.

    The owner of the job can stop its processes here until the grace period has passed.
    """
    global _why_withdrawn
    if _served is not None and worker.leave_grace_s > 0:
        _served.tell_agent(_ROOT, "host_leaving", worker.leave_grace_s)
        _outlast_processes(_served, worker)
    if not _over.is_set():
        _why_withdrawn = "its worker was shut down"
        leave()


def _outlast_processes(runtime: Runtime, worker: Inheritance) -> None:
    """Wait while processes of the job are alive here, at most for the worker's grace period."""
    assert runtime.host_agent is not None
    until = time.monotonic() + worker.leave_grace_s
    while (left_s := until - time.monotonic()) > 0 and not _over.is_set():
        if os.getppid() != worker.worker or runtime.host_agent.wait_until_empty(
            min(left_s, _LOOK_S)
        ):
            return


class _SessionLifecycle(Lifecycle):
    """The end of a session: its host leaves the job, and the worker stays."""

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """End the session."""
        leave(status, is_at_once=is_at_once)

    def root_died(self) -> None:
        """Handle the loss of the program that runs the job, whose lease has expired."""
        if _orphan_grace is None:
            leave()
        else:
            _orphan_grace.begin()


class Inheritance(NamedTuple):
    """The parameters that a session gets from its worker; descriptors are numbers."""

    worker: int
    """The process id of the worker, which no session outlives."""
    worker_id: str
    """The unique id of the worker."""
    folder: str
    """The folder of its credentials; empty for those shared by all programs of its user."""
    limit_s: float
    """The maximum time to wait for a job, in seconds."""
    leave_grace_s: float
    """Seconds that the processes of a job continue after SIGTERM, unless their owner stops them."""
    listener: int
    """The listening socket."""
    listens: int
    """A pipe that is closed once requests are served."""
    request_fd: int
    """The descriptor for requests for additional sessions."""
    cache_inlet: int
    """The descriptor through which templates leave retained templates."""
    retained_template: int | None = None
    """The socket of the current retained template, if any."""


def main(worker: Inheritance) -> None:
    """Wait for a job, serve it and exit."""
    global _is_additional
    _is_additional = worker.limit_s < math.inf
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with on_signals((signal.SIGTERM,), lambda: withdraw(worker)):
        _serve_one(worker)


def _serve_one(worker: Inheritance) -> None:
    global _served
    _kernel.die_with_parent(signal.SIGTERM)
    if os.getppid() != worker.worker:
        return  # The worker died before it could be monitored.
    for fd in (worker.cache_inlet, worker.request_fd, worker.retained_template):
        if fd is not None:
            os.set_inheritable(fd, False)
    latest = (
        None if worker.retained_template is None else socket.socket(fileno=worker.retained_template)
    )
    keys = worker_keys(worker.folder)
    listener = Listener(worker.listener, keys)
    os.close(worker.listens)
    redirector = SessionRedirector(worker.request_fd)
    accepted = _next_request(listener, redirector, worker, _wait_max_s(worker, keys))
    if accepted is not None:
        caller, request, imported = accepted
        template_cache = TemplateCacheClient(worker.cache_inlet, imported or latest)
        runtime = _serve(
            listener, redirector, caller, request, keys, template_cache, worker.worker_id
        )
        if runtime is not None:
            _served = runtime
            _over.wait()
            _end(runtime, worker)
    listener.close()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(_status)


def _wait_max_s(worker: Inheritance, keys: Keys) -> float:
    """Return the maximum time to wait for a job; the next session loads renewed credentials."""
    if worker.folder:
        return worker.limit_s
    return min(worker.limit_s, keys.renew_at_s - time.time())


def _next_request(
    listener: Listener, redirector: SessionRedirector, worker: Inheritance, wait_max_s: float
) -> tuple[IncomingRequest, AttachRequest, socket.socket | None] | None:
    """Wait for a valid request; return None if the time or the worker ends first.

    Returns:
        The caller, its request, and the socket of a retained template for it, if there is one.
    """
    kept = _StandbyReservation()
    until = time.monotonic() + wait_max_s
    while not _over.is_set() and time.monotonic() < until:
        caller = listener.next_request(_LOOK_S)
        kept.end_if_over()
        if caller is None or redirector.takes(caller):
            continue
        if caller.role == "worker":
            # A compromised worker must not gain access to other workers.
            text = "only the job's controller can attach; this is a worker's certificate"
            _tell(caller, False, text, is_final=True)
            continue
        if TakeOverRequest.decode(caller.body) is not None:
            _tell(caller, False, Refusal("it holds no job", is_final=True).encode())
            continue
        try:
            request = AttachRequest.decode(caller.body)
        except ValueError as error:
            _tell(caller, False, str(error), is_final=True)
            continue
        if request.worker_id not in ("", worker.worker_id):
            _tell(caller, False, "another worker is in its place", is_final=True)
            continue
        why = refusal(request.versions) if request.versions else None
        if why is not None:
            _tell(caller, False, why, is_final=True)
            continue
        why = kept.refusal(request)
        if why is None and request.verb == SERVE:
            return caller, request, kept.take_template()
        _tell(caller, why is None, why or socket.gethostname())
    kept.end()
    return None


class _StandbyReservation:
    """The reservation of the worker as a standby of a job."""

    def __init__(self) -> None:
        self._request: AttachRequest | None = None
        self._until = 0.0
        self._template: StandbyTemplate | None = None

    def refusal(self, request: AttachRequest) -> str | None:
        """Return why a job cannot have this worker now; otherwise apply its reservation request."""
        holder = self._request if time.monotonic() < self._until else None
        if holder is not None:
            is_same = hmac.compare_digest(holder.job + holder.token, request.job + request.token)
            if not is_same:
                return f"it is kept as a standby of a job of {holder.owner}"
        if holder is None or request.verb == RELEASE:
            self.end()
        self._request = request if request.verb == HOLD else None
        self._until = time.monotonic() + request.lease_s + request.orphan_grace_s
        if request.verb == HOLD and request.preload:
            self._template = self._template or StandbyTemplate(request.path)
            self._template.preload(request.preload)
        return None

    def take_template(self) -> socket.socket | None:
        """Return the socket of the template that has imported the job's modules, if it is ready."""
        template, self._template = self._template, None
        return None if template is None else template.take()

    def end_if_over(self) -> None:
        """End the template if the reservation has expired."""
        if self._template is not None and time.monotonic() >= self._until:
            self.end()

    def end(self) -> None:
        """End the template."""
        template, self._template = self._template, None
        if template is not None:
            template.close()


def _tell(caller: IncomingRequest, is_taken: bool, text: str, *, is_final: bool = False) -> None:
    try:
        caller.reply(is_taken, text.encode(errors="replace"), is_final)
    except OSError:
        # The client is gone, so the reply is not needed.
        return


def _serve(
    listener: Listener,
    redirector: SessionRedirector,
    caller: IncomingRequest,
    request: AttachRequest,
    keys: Keys,
    template_cache: TemplateCacheClient,
    worker_id: str,
) -> Runtime | None:
    """Serve as a host of the job, or reply with the reason if that fails."""
    try:
        runtime = _join(listener, redirector, request, keys, template_cache)
    except Exception as error:
        # The process exits after a failed attempt, so the worker is available for the next job.
        why = f"it cannot serve this job: {type(error).__name__}: {error}"
        _tell(caller, False, why, is_final=True)
        report(f"could not serve a job of {request.owner}: {error}")
        return None
    reply = AttachReply(runtime.identity.host_name, worker_id, differences(request.versions))
    _tell(caller, True, reply.encode())
    where = " beside others" if _is_additional else ""
    report(f"serves a job of {request.owner}{where} in process {os.getpid()}")
    return runtime


def _join(
    listener: Listener,
    redirector: SessionRedirector,
    request: AttachRequest,
    keys: Keys,
    template_cache: TemplateCacheClient,
) -> Runtime:
    """Create the host of the job."""
    global _orphan_grace
    inherit(request.config)
    extend_path(request.path)
    is_held = request.orphan_grace_s > 0
    identity = Identity(
        host=request.host,
        host_name=socket.gethostname(),
        slot=0,
        incarnation=request.epoch << EPOCH_SHIFT,
        job=request.job,
        token=request.token,
        directory=JobDir.new_path(),
        outlives_root=is_held,
    )
    runtime = assemble(identity, _SessionLifecycle())
    set_credentials(runtime, keys)
    runtime.host_agent = HostAgent(
        runtime,
        runtime.identity.incarnation + 1,
        template_cache=template_cache,
        on_start=lambda pid, name: report(f"has process {pid}: {name}"),
        on_resume=lambda: _monitor_root(runtime, request, effective().host_lease_s),
    )
    runtime.start_agent()
    if request.preload:
        # Another machine serves as this host while the program waits for the reply.
        runtime.host_agent.warm_up(request.preload, _WARM_LIMIT_S)
    if request.processes:
        runtime.host_agent.start_early(unpack_requests(request.processes))
    if request.generation:
        runtime.agent.do_host_back(None, 0, request.generation)
    _monitor_root(runtime, request, request.lease_s)
    if is_held:
        _orphan_grace = OrphanGrace(runtime, listener, redirector, request, leave)
        _orphan_grace.start()
    else:
        refuse = (listener, redirector, f"it serves a job of {request.owner}")
        threading.Thread(target=_turn_away, args=refuse, name="mesh-redirect", daemon=True).start()
    runtime.engine.admit(listener)
    return runtime


def _monitor_root(runtime: Runtime, request: AttachRequest, lease_s: float) -> None:
    """Leave the job, or keep it for a successor, when the program is silent for a lease."""
    lost = exit_report(request.owner) if request.orphan_grace_s > 0 else b""
    heartbeat_s = max(lease_s, effective().heartbeat_s) / HEARTBEATS
    runtime.engine.monitor_host(0, heartbeat_s, effective().unresponsive_timeout_s, lost, lost)


def _turn_away(listener: Listener, redirector: SessionRedirector, why: str) -> None:
    """Refuse requests for a worker that is in use, except for additional sessions."""
    while not _over.is_set():
        caller = listener.next_request(_LOOK_S)
        if caller is not None and not redirector.takes(caller):
            _tell(caller, False, why)


def _end(runtime: Runtime, worker: Inheritance) -> None:
    """Stop the remaining part of the job on this host."""
    assert runtime.host_agent is not None
    if not _is_additional:
        report("is ending the job")
    if _why_withdrawn is not None:
        # The owner must be notified of the withdrawal before the processes exit. Calls to them
        # then report that the host was lost, and not that the actor was stopped.
        told = (runtime.identity.host_name, _why_withdrawn)
        runtime.ask_agent(_ROOT, "host_left", *told, timeout=_OWNER_HEARS_S)
        if worker.leave_grace_s > 0:
            grace_s = effective().stop_grace_s
            runtime.host_agent.stop(None, runtime.host_agent.living(), grace_s, True)
            runtime.host_agent.wait_until_empty(grace_s)
    runtime.host_agent.close(0.0 if _is_at_once else effective().stop_grace_s)
    is_heard = _status in (0, ENDED_BY_OWNER) and not _is_at_once
    threading.Event().wait(_LAST_REPLY_S if is_heard else 0.0)
    runtime.engine.close()
    report("has ended a job beside others" if _is_additional else "has ended the job")
    shutil.rmtree(runtime.identity.directory, ignore_errors=True)
