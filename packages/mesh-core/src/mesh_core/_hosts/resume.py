"""The part of the new machine in a move of its host: it continues the processes of the old one."""

from __future__ import annotations

from mesh_core._core import Targets
from mesh_core._serialization.remote_error import decode_exception
from mesh_core._serialization.wire import SPAWN, proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._hosts.agent import HostAgent
    from mesh_core._meshes.moved_state import ProcState
    from mesh_core._runtime.runtime import Runtime

__all__ = ["resume"]

_WINDOW = 1 << 31


def resume(runtime: Runtime, host_agent: HostAgent, states: Sequence[ProcState]) -> None:
    """Start the processes with the actors that they had, and wait until the actors run.

    If the state of an actor cannot be restored, its process is killed, and its owner handles that
    as any other death.
    """
    host = runtime.identity.host
    for state in states:
        host_agent.replace(state.slot, state.request)
    replies: list[tuple[int, int]] = []
    for state in states:
        proc = proc_id(host, state.slot)
        for port, rank, window, body, buffers in state.actors:
            reply = runtime.engine.call(
                SPAWN,
                Targets([(proc, rank)]),
                port,
                window.to_bytes(4, "little"),
                body,
                list(buffers),
                _WINDOW,
                None,
                None,
            )
            replies.append((state.slot, reply))
        for port, code, detail in state.closed:
            runtime.tell_agent(proc, "move_closed", port, code, detail)
    for slot, reply in replies:
        answers = runtime.engine.wait(reply, None)
        if answers and answers[0].code:
            problem = decode_exception(answers[0].body)
            host_agent.kill(slot, f"the state of an actor could not be restored: {problem}")
