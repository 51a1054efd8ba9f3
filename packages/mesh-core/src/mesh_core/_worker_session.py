"""One job on a worker: from the request to serve it until the host has left it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading

from mesh_core import _kernel
from mesh_core._attach_order import AttachOrder
from mesh_core._hold import HEARTBEATS, Hold, obituary
from mesh_core._job_dir import JobDir
from mesh_core._take_over_order import Refusal, TakeOverOrder
from mesh_core._trust import Credentials
from mesh_core._worker import ENDED_BY_OWNER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Caller, Gate, Keys
    from mesh_core._runtime import Runtime

__all__ = ["is_session", "leave", "main", "root_died"]

_LOOK_S = 1.0
# How long the answer to the last question may take to reach the owner.
_FAREWELL_S = 0.5

_over = threading.Event()
_status = 0
_is_session = False
# What keeps the job for a successor of its program, where the job wants that.
_hold: Hold | None = None


def is_session() -> bool:
    """Says whether this process is a worker's."""
    return _is_session


def leave(status: int = 0) -> None:
    """Ends the session: its host leaves the job."""
    global _status
    _status = status
    _over.set()


def root_died() -> None:
    """The program that runs the job is lost: its lease is over."""
    if _hold is None:
        leave()
    else:
        _hold.begin()


def main(listener: int, folder: str) -> None:
    """Waits for a job, serves it and ends the process.

    Args:
        listener: The descriptor of the worker's listening socket.
        folder: Where the worker's credentials are; empty when it has none.
    """
    global _is_session
    from mesh_core._core import Gate

    _is_session = True
    _kernel.die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: leave())
    keys = Credentials.load(folder)._keys if folder else None
    gate = Gate(listener, keys)
    asked = _next_order(gate)
    if asked is not None:
        caller, order = asked
        runtime = _join(gate, caller, order, keys)
        _over.wait()
        _end(runtime)
    gate.close()
    sys.stdout.flush()
    os._exit(_status)


def _next_order(gate: Gate) -> tuple[Caller, AttachOrder] | None:
    """Waits for a request that makes sense; None when the worker ends before one has come."""
    while not _over.is_set():
        caller = gate.next_request(_LOOK_S)
        if caller is None:
            continue
        if TakeOverOrder.decode(caller.body) is not None:
            _tell(caller, False, Refusal("it holds no job", is_final=True).encode())
            continue
        try:
            return caller, AttachOrder.decode(caller.body)
        except ValueError as error:
            _tell(caller, False, str(error))
    return None


def _tell(caller: Caller, is_taken: bool, text: str) -> None:
    try:
        caller.answer(is_taken, text.encode())
    except OSError:
        # It is gone, and wants nothing any more.
        return


def _join(gate: Gate, caller: Caller, order: AttachOrder, keys: Keys | None) -> Runtime:
    """Becomes a host of the job."""
    global _hold
    from mesh_core._config import effective, inherit
    from mesh_core._host_agent import HostAgent
    from mesh_core._runtime import Identity, Runtime, adopt

    inherit(order.config)
    # Behind our own: where both machines see the same files, the program's modules are found.
    sys.path += [p for p in order.path if p not in sys.path and os.path.exists(p)]
    name = socket.gethostname()
    # A successor can prove itself only where there are credentials.
    is_held = order.hold_s > 0 and keys is not None
    identity = Identity(
        host=order.host,
        host_name=name,
        slot=0,
        incarnation=0,
        job=order.job,
        token=order.token,
        directory=JobDir.new_path(),
        outlives_root=is_held,
    )
    runtime = Runtime(identity)
    adopt(runtime)
    if keys is not None:
        runtime.engine.set_trust(keys)
    runtime.host_agent = HostAgent(runtime, 1)
    runtime.start_agent()
    lease_s = max(order.lease_s, effective().heartbeat_s)
    lost = obituary(order.owner) if is_held else b""
    runtime.engine.expect_host(0, lease_s / HEARTBEATS, lost)
    if is_held:
        _hold = Hold(runtime, gate, order, leave)
        _hold.start()
    runtime.engine.admit(gate, None if is_held else f"it serves a job of {order.owner}")
    _tell(caller, True, name)
    return runtime


def _end(runtime: Runtime) -> None:
    """Stops what is left of the job here."""
    from mesh_core._config import effective

    assert runtime.host_agent is not None
    runtime.host_agent.close(effective().stop_grace_s)
    threading.Event().wait(_FAREWELL_S if _status in (0, ENDED_BY_OWNER) else 0.0)
    runtime.engine.close()
    shutil.rmtree(runtime.identity.directory, ignore_errors=True)
