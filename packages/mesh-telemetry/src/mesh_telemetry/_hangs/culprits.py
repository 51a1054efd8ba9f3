"""Descriptions of processes that keep others waiting, from their stacks and the kernel."""

from __future__ import annotations

import os

from mesh_telemetry._hangs.hang import Culprit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_telemetry._collectives.collectives_file import Collective
    from mesh_telemetry._hangs.process_state import Frame, ProcessState, Stack, Wait
    from mesh_telemetry._hangs.stalls import Member

__all__ = [
    "STOPPED",
    "caller_in",
    "culprit_in_call",
    "culprit_of_call",
    "culprit_out_of_call",
    "current_line",
    "wait_of",
]

#: The description of a process that was stopped by a signal or a debugger.
STOPPED = "is stopped: it received SIGSTOP, or a debugger holds it"
_DATA_LOADER = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
_SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"
_PACKAGES = (
    "torch", "mesh_core", "mesh_fs", "mesh_jobs", "mesh_rdma", "mesh_telemetry", "mesh_tensor"
)  # fmt: skip
_LIBRARIES = (*(f"{os.sep}{name}{os.sep}" for name in _PACKAGES), "<frozen", "<string>")
_STANDARD_LIBRARY = os.path.dirname(os.__file__)


def wait_of(state: ProcessState) -> Wait | None:
    """Return the call whose reply an actor of a process awaits without a limit; None if none."""
    return next((one for one in state.waits if one.waited_s is not None and one.endpoint), None)


def caller_in(one: Collective) -> str:
    """Return the line that has called an operation."""
    return f"{one.file}:{one.line} in {one.function}"


def current_line(state: ProcessState, last: Collective | None) -> str:
    """Return the line of the program that a process executes; empty if it is not known.

    Args:
        state: The process.
        last: The last operation that it has called, if any.
    """
    return _where(_main_stack(state, last))


def culprit_in_call(member: Member, kind: str, reason: str, at: Collective | None) -> Culprit:
    """Describe a rank that has called an operation which does not end."""
    stack = _main_stack(member.state, at)
    where = _where(stack) if at is None else caller_in(at)
    return _culprit(member.state, member.rank, kind, reason, where, stack)


def culprit_out_of_call(
    state: ProcessState, member: Member | None, awaited: tuple[str, str] | None, *, is_busy: bool
) -> Culprit:
    """Describe a process that has not called an operation in which others wait.

    Args:
        state: The process.
        member: The process as a member of the group; None if it is not a member.
        awaited: Kind and description of the reply that it awaits; None if it awaits none.
        is_busy: Whether it computes, or reads or writes files.
    """
    rank = state.rank if member is None else member.rank
    last = None if member is None else member.last
    stack = _main_stack(state, last)
    kind, reason = "blocked", "is blocked, and has not called it"
    if state.state == "T":
        kind, reason = "stopped", STOPPED
    elif state.state == "X":
        kind, reason = "lost", "has exited"
    elif state.state == "?":
        kind, reason = "lost", "does not reply, and neither does its host"
    elif awaited is not None:
        kind, reason = awaited
    elif state.stacks is None:
        reason = "does not reply: it holds the GIL, or is starved"
    elif stack is None or (state.slot and state.running == ()):
        after = "" if last is None else f", after {last.operation} #{last.sequence}"
        what = "it runs no code of the program" if state.is_script else "its endpoint has returned"
        reason = f"does not call it: {what}{after}"
        where = "" if last is None else caller_in(last)
        return _culprit(state, rank, "missing_call", reason, where, None)
    elif any(_DATA_LOADER in frame.file for frame in stack.frames):
        kind, reason = "data_loader", "waits for its data loader"
    elif is_busy:
        kind, reason = "busy", "computes or reads or writes files, and has not called it yet"
    return _culprit(state, rank, kind, reason, _where(stack), stack)


def culprit_of_call(state: ProcessState, wait: Wait, asker: ProcessState) -> Culprit:
    """Describe a process whose reply another one awaits."""
    stack = _main_stack(state, None)
    # A process does not know the endpoint of a call to several ranks, but the called one does.
    served = [wait.endpoint, *(state.running or ())]
    called = next((repr(name) for name in served if name), "a call")
    kind, reason = "blocked", f"serves {called}"
    if state.state == "T":
        kind, reason = "stopped", STOPPED
    elif state.is_busy:
        kind, reason = "busy", f"is computing in {called}"
    elif not _where(stack):
        reason = f"has {called} in its queue, or its reply is on the way"
    reason += f", for which process {asker.name} of {asker.mesh!r} waits"
    return _culprit(state, state.rank, kind, reason, _where(stack), stack)


def _culprit(
    state: ProcessState, rank: int, kind: str, reason: str, where: str, stack: Stack | None
) -> Culprit:
    lines = () if stack is None else tuple(map(_line, stack.frames))
    return Culprit(
        rank, kind, reason, where, state.mesh, state.name, state.pid, state.host_name, lines
    )


def _main_stack(state: ProcessState, last: Collective | None) -> Stack | None:
    """Return the stack of the thread that calls collectives, or else runs an endpoint."""
    stacks: Sequence[Stack] = [one for one in state.stacks or () if _user_frame(one) is not None]
    if last is not None:
        for stack in stacks:
            if stack.thread == last.thread and stack.task is None:
                return stack
    for is_it in (
        lambda one: one.task is not None,
        lambda one: one.thread_name.startswith("mesh-"),
        lambda one: one.thread_name == "MainThread",
    ):
        for stack in stacks:
            if is_it(stack):
                return stack
    return None


def _where(stack: Stack | None) -> str:
    frame = None if stack is None else _user_frame(stack)
    return "" if frame is None else _line(frame)


def _user_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of a program's own code."""
    for frame in stack.frames:
        is_library = any(part in frame.file for part in _LIBRARIES)
        is_standard = frame.file.startswith(_STANDARD_LIBRARY) and _SITE_PACKAGES not in frame.file
        if not is_library and not is_standard:
            return frame
    return None


def _line(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} in {frame.function}"
