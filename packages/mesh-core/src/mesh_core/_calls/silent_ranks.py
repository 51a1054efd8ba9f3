"""Description of the ranks that did not reply within a timeout, and the known reasons."""

from __future__ import annotations

from mesh_core._core import Targets
from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.wire import proc_id, proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._runtime.runtime import Runtime

__all__ = ["describe_silent"]

# Time limit for the agents of hosts to report the state of their processes.
_LIMIT_S = 0.5
# Shorter waits count as polls, and no diagnosis prolongs them.
_POLL_S = 0.1
_NAMED_MAX = 3

_Condition = tuple[str, str]
"""The process, and its state or missing reply, as two texts."""


def describe_silent(mesh: Any, reply: int, timeout_s: float | None) -> str:
    """Describe the processes that have not replied to a call, as the end of an error message.

    Args:
        mesh: The mesh that was called.
        reply: The port on which the replies arrive.
        timeout_s: How long the caller has waited, in seconds.

    Returns:
        Text that begins with a colon; empty if no process can be named.
    """
    if timeout_s is None or timeout_s < _POLL_S:
        return ""
    current: Runtime = mesh._runtime
    procs = [proc for call, proc, _ in current.engine.waits() if call == reply]
    named = procs[:_NAMED_MAX]
    conditions = _conditions_of(current, named)
    texts = [_text(mesh, proc, conditions[proc]) for proc in named]
    if len(procs) > len(named):
        texts.append(f"{len(procs) - len(named)} more have not replied")
    return f": {'; '.join(texts)}" if texts else ""


def _text(mesh: Any, proc: int, condition: _Condition) -> str:
    where, what = condition
    if not proc & 0xFFFF_FFFF:
        return f"{where} {what}"
    ranks = mesh._ranks_on(proc)
    who = f"rank {ranks[0]}" if ranks else f"process {proc_name(proc)}"
    return f"{who} ({where}) {what}"


def _conditions_of(current: Runtime, procs: list[int]) -> dict[int, _Condition]:
    """Query the agents of all hosts in parallel."""
    slots: dict[int, list[int]] = {}
    for proc in procs:
        slots.setdefault(proc >> 32, []).append(proc & 0xFFFF_FFFF)
    found: dict[int, _Condition] = {}
    replies: dict[int, int] = {}
    for host, numbers in slots.items():
        if current.host_agent is not None and host == current.identity.host:
            for number in numbers:
                found[proc_id(host, number)] = current.host_agent.condition(number)
        else:
            agent = Targets([(proc_id(host, 0), 0)])
            replies[host] = current.call_agents(agent, "conditions", numbers, timeout=_LIMIT_S)
    for host, reply in replies.items():
        answers = current.engine.wait(reply, None)
        is_answered = answers and not answers[0].code
        known = value_of(answers[0]) if is_answered else None
        for place, number in enumerate(slots[host]):
            silent = _silent_host(current, host)
            found[proc_id(host, number)] = silent if known is None else known[place]
    return found


def _silent_host(current: Runtime, host: int) -> _Condition:
    silence_s = current.engine.host_silence_s(host)
    since = "" if silence_s is None else f" for {silence_s:.0f} s"
    return f"host {current.places.name_of(host)}", f"has not replied{since}"
