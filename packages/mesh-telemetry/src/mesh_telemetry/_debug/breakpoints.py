"""The effect of `breakpoint()` in a recorded process, and its paused sessions.

No part of a debugger is loaded before code pauses.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from contextlib import suppress

from mesh_core import CallCancelled, context
from mesh_core.spi import current_process, intercept_endpoints
from mesh_telemetry._debug.failure_rules import read_rules
from mesh_telemetry._debug.session import DebugSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType, TracebackType
    from typing import Any

    from mesh_telemetry._debug.debugger import Debugger
    from mesh_telemetry._debug.failure_rules import FailureRule

__all__ = ["Breakpoints"]

_VARIABLE = "PYTHONBREAKPOINT"
_ROOT = "root"
_lock = threading.RLock()
# The instances of this process, oldest first: the last one has the sessions.
_instances: list[Breakpoints] = []
_python_hook: Callable[..., Any] = sys.breakpointhook


class Breakpoints:
    """The debug sessions of this process.

    Args:
        folder: The folder of the process.
        host_folder: The folder of its host, which has the rules for pausing at failures.
    """

    def __init__(self, folder: Path, host_folder: Path) -> None:
        self._folder = folder
        self._host_folder = host_folder
        self._sessions: dict[str, DebugSession] = {}
        self._rules: list[FailureRule] = []
        self._remove_interceptor: Callable[[], None] | None = None
        with _lock:
            if not _instances:
                _set_hook()
            _instances.append(self)
        self.read_rules()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table `debug_sessions`."""
        return [session.row() for session in self._paused_sessions()]

    def read_rules(self) -> bool:
        """Read the rules for pausing at failures."""
        with _lock:
            self._rules = read_rules(self._host_folder)
            remove_interceptor = self._remove_interceptor
            if self._rules and remove_interceptor is None:
                # If another interceptor is installed, that one handles failures.
                with suppress(RuntimeError):
                    self._remove_interceptor = intercept_endpoints(self._pausing_at_failures)
            elif remove_interceptor is not None and not self._rules:
                self._remove_interceptor = None
                remove_interceptor()
        return True

    def close(self) -> None:
        """Let all sessions continue, and restore Python's `breakpoint()`."""
        with _lock:
            remove_interceptor, self._remove_interceptor = self._remove_interceptor, None
            if remove_interceptor is not None:
                remove_interceptor()
        self.disable()
        for session in self._paused_sessions():
            session.release()

    def disable(self) -> None:
        """Stop opening sessions; also called in forked processes, which no client can reach."""
        if self in _instances:
            _instances.remove(self)
        if not _instances and sys.breakpointhook is _breakpoint_hook:
            sys.breakpointhook = _python_hook

    def pause(self, frame: FrameType) -> None:
        """Pause at a breakpoint."""
        debugger = _debugger()
        if debugger.pause_in_editor(frame):
            return
        session = self._open("breakpoint", frame, frame.f_lineno, None)
        debugger(session).pause(frame)

    def pause_at_exception(
        self, error: BaseException, traceback: TracebackType, limit_s: float
    ) -> None:
        """Pause where an exception was raised."""
        last = traceback
        while last.tb_next is not None:
            last = last.tb_next
        session = self._open("post_mortem", last.tb_frame, last.tb_lineno, limit_s, error)
        _debugger()(session).pause_at_exception(traceback)

    def _paused_sessions(self) -> list[DebugSession]:
        with _lock:
            self._sessions = {one.id: one for one in self._sessions.values() if not one.is_over}
            return list(self._sessions.values())

    def _open(
        self,
        kind: str,
        frame: FrameType,
        line: int,
        limit_s: float | None,
        error: BaseException | None = None,
    ) -> DebugSession:
        actor = context().actor_instance
        port = actor.actor_id.port
        description = {
            "kind": kind,
            "port": port,
            "actor": actor.name if port else None,
            "rank": actor.rank.rank if port else current_process.location().rank,
            "function": frame.f_code.co_qualname,
            "file": frame.f_code.co_filename,
            "line": line,
            "since_us": time.time_ns() // 1000,
        }
        session = DebugSession(self._folder, description, limit_s)
        with _lock:
            self._sessions = {**self._sessions, session.id: session}
        what = "a breakpoint" if error is None else type(error).__name__
        owner = (
            f"{description['actor']} of rank {description['rank']}"
            if port
            else f"process {os.getpid()}"
        )
        where = f"{description['function']}, {description['file']}:{line}"
        notice = f"{owner} is paused at {what} in {where}: mesh debug attach {session.id}"
        print(notice, file=sys.stderr)
        sys.stderr.flush()
        return session

    def _pausing_at_failures(
        self, function: Callable[..., Any], is_async: bool
    ) -> Callable[..., Any]:
        """Wrap an endpoint so that it pauses at failures before the caller is notified."""
        if str(getattr(function, "__module__", "")).startswith("mesh_"):
            return function
        if is_async:

            @functools.wraps(function)
            async def serve(*args: Any, **kwargs: Any) -> Any:
                try:
                    return await function(*args, **kwargs)
                except Exception as error:
                    self._on_failure(error)
                    raise

        else:

            @functools.wraps(function)
            def serve(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self._on_failure(error)
                    raise

        return serve

    def _on_failure(self, error: Exception) -> None:
        # The first frame belongs to the wrapper.
        traceback = None if error.__traceback__ is None else error.__traceback__.tb_next
        if traceback is None or isinstance(error, CallCancelled):
            return
        names = (None, context().actor_instance.name, current_process.location().mesh_name)
        limits_s = [rule.limit_s for rule in self._rules if rule.mesh in names]
        if limits_s:
            # The failure must reach the caller even if no session can be opened.
            with suppress(OSError):
                self.pause_at_exception(error, traceback, max(limits_s))


def _debugger() -> type[Debugger]:
    # pdb takes 3 ms and seven modules, and most recorded processes never pause.
    from mesh_telemetry._debug.debugger import Debugger  # noqa: PLC0415

    return Debugger


def _set_hook() -> None:
    global _python_hook
    if not os.environ.get(_VARIABLE):
        _python_hook = sys.breakpointhook
        sys.breakpointhook = _breakpoint_hook


def _breakpoint_hook(*args: Any, **kwargs: Any) -> None:
    """Handle `breakpoint()`."""
    frame = sys._getframe(1)
    port = context().actor_instance.actor_id.port
    instances = list(_instances)
    if instances and (port or current_process.location().mesh_name != _ROOT):
        instances[-1].pause(frame)
    elif _python_hook is sys.__breakpointhook__:
        # The same as Python's own hook, but in the frame of the caller.
        _debugger().pause_in_terminal(frame)
    else:
        _python_hook(*args, **kwargs)
