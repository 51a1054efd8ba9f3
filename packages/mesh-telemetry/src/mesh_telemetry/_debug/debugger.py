"""Python's debugger for a paused thread and the client that is attached to it."""

from __future__ import annotations

import ctypes
import dis
import inspect
import pdb
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mesh_telemetry._debug.adapter import adapter
from mesh_telemetry._errors import DebugError

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from mesh_telemetry._debug.session import DebugSession

__all__ = ["Debugger"]

# Modules that call user code; the debugger does not step out into them.
_OUTSIDE = frozenset({"asyncio", "concurrent", "mesh_core", "mesh_telemetry", "threading"})
_SKIPPED = [f"{name}{rest}" for name in sorted(_OUTSIDE) for rest in ("", ".*")]
_SUSPENDS = frozenset({"YIELD_VALUE"})
# Before Python 3.13, changed local variables are copied back only after a trace function returned.
_COPIES_LOCALS = sys.version_info < (3, 13)
_NOT_HERE = "*** not available in a session: "


class _Input:
    """Input of the debugger. The prompt is the last output without a line feed."""

    def __init__(self, session: DebugSession, debugger: Debugger) -> None:
        self._session = session
        self._debugger = debugger
        self._shown_client: object = None

    def readline(self) -> str:
        """Return a line; an empty string if the code must continue."""
        prompt = self._debugger.output.take_prompt()
        # A client that attached during the last output is prompted only after the location was
        # shown: it would get two prompts, and take the location for the output of its first
        # command.
        self._session.send(prompt=prompt, to=self._shown_client)
        while True:
            line, client = self._session.wait(self._shown_client)
            if line is not None:
                return f"{line}\n"
            if client is self._shown_client or client is None or self._session.is_released:
                return ""
            self._shown_client = client
            self._debugger.show_location()
            self._session.send(prompt=prompt, to=client)


class _Output:
    """Output of the debugger: whole lines are sent, the rest is buffered."""

    encoding = "utf-8"

    def __init__(self, session: DebugSession) -> None:
        self._session = session
        self._rest = ""

    def write(self, text: str) -> int:
        whole, feed, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if feed:
            self._session.send(text=whole + feed)
        return len(text)

    def flush(self) -> None:
        """Do nothing: only a prompt is buffered."""

    def take_prompt(self) -> str:
        prompt, self._rest = self._rest, ""
        return prompt


class Debugger(pdb.Pdb):
    """`pdb` over a debug session.

    It ends when the endpoint in which it began returns, or when the session is released. Its
    breakpoints end with it.

    Args:
        session: The session that provides the commands.
    """

    def __init__(self, session: DebugSession) -> None:
        self.output: _Output = _Output(session)
        streams: dict[str, Any] = {"stdin": _Input(session, self), "stdout": self.output}
        super().__init__(nosigint=True, readrc=False, skip=_SKIPPED, **streams)
        # `pdb` shares breakpoints among all instances; this one must not have those of other
        # sessions.
        self.breaks = {}
        self._session = session
        self._root: FrameType | None = None
        self._is_begun = self._is_done = False
        self._raised_in: FrameType | None = None

    @staticmethod
    def pause_in_editor(frame: FrameType) -> bool:
        """Pause in a frame if an editor is attached to this process; return whether one is."""
        if not adapter.is_attached:
            return False
        adapter.pause(frame)
        return True

    @staticmethod
    def pause_in_terminal(frame: FrameType) -> None:
        """Pause in a frame, with the commands of `pdb` in the terminal of this process."""
        pdb.Pdb().set_trace(frame)

    def pause(self, frame: FrameType) -> None:
        """Pause in a frame until a client has attached and let the code continue."""
        self.reset()
        self._root = root = _root_of(frame)
        for each in _frames(frame, root):
            each.f_trace = self.trace_dispatch
        self.botframe = root
        try:
            self.interaction(frame, None)
        except BaseException:
            self._end("the call has ended")
            raise
        if self._session.is_editor:
            self._attach_editor(frame)
        elif not self._session.is_released and not self._is_done:
            # This is the last statement, because functions called afterwards would be traced.
            sys.settrace(self.trace_dispatch)

    def pause_at_exception(self, traceback: TracebackType) -> None:
        """Pause where an exception was raised until a client attaches and continues it."""
        self.reset()
        try:
            self.interaction(None, traceback)
        finally:
            self._end("the exception is delivered to the caller")

    def show_location(self) -> None:
        """Show the current location to a client that has just attached."""
        with suppress(Exception):
            self.print_stack_entry(self.stack[self.curindex])

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        """Process commands until one lets the code continue."""
        if self._is_begun and frame is not None:
            code = frame.f_code
            self._session.set_location(code.co_qualname, code.co_filename, frame.f_lineno)
        self._is_begun = True
        super().interaction(frame, traceback)
        if self._session.is_editor:
            return
        if frame is not None and (self._session.is_released or self._is_done):
            self._end("the code continues")

    def onecmd(self, line: str) -> bool:
        """Run a command, and write changed local variables back to the frame."""
        frame = self.curframe if _COPIES_LOCALS and self._root is not None else None
        if frame is not None:
            # Python copies back only variables that were read through `f_locals` before.
            frame.f_locals  # noqa: B018
        is_last = bool(super().onecmd(line))
        if frame is not None:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        return is_last

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace the code between two commands."""
        if self._session.is_released:
            self._end("the code continues")
            return None
        result = super().trace_dispatch(frame, event, arg)
        if frame is self._root and not self._is_done:
            if event == "return" and self._has_ended(frame):
                self._end("the endpoint has returned")
                return None
            self._raised_in = frame if event == "exception" else None
        return result

    def set_continue(self) -> None:
        """Continue to the next breakpoint; end the session if there is none."""
        super().set_continue()
        self._is_done = not self.breaks

    def do_quit(self, arg: str) -> bool:
        """Lets the code go on, without its breakpoints: nothing that stands here is to die."""
        if not self._session.is_editor:
            self._session.release()
        return True

    do_q = do_exit = do_EOF = do_detach = do_quit

    def do_run(self, arg: str) -> None:
        """Says that a program is not started again from here."""
        self.message(f"{_NOT_HERE}restart the program from a shell")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """Says what there is instead."""
        self.message(f"{_NOT_HERE}enter any statement with a leading !")

    def _has_ended(self, frame: FrameType) -> bool:
        """Return whether a frame has returned, rather than been suspended."""
        if not frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR):
            return True
        if self._raised_in is frame:
            return True
        return dis.opname[frame.f_code.co_code[frame.f_lasti]] not in _SUSPENDS

    def _attach_editor(self, frame: FrameType) -> None:
        """Pass control of the process to an editor."""
        session = self._session
        self._stop_tracing()
        try:
            adapter.connect(session.editor(), lambda: session.close("the editor has disconnected"))
        except DebugError as error:
            self._session.close(str(error))
            print(error, file=sys.stderr, flush=True)
            return
        adapter.pause_when_attached(frame, lambda: session.is_released)

    def _end(self, why: str) -> None:
        """End the session, and stop tracing."""
        self._stop_tracing()
        self._session.close(why)

    def _stop_tracing(self) -> None:
        self._is_done = True
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)
        if self._root is not None:
            for each in _frames(sys._getframe(), None):
                if getattr(each.f_trace, "__self__", None) is self:
                    each.f_trace = None
        for file, lines in list(self.breaks.items()):
            for line in list(lines):
                self.clear_break(file, line)


def _frames(frame: FrameType, last: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, up to the last."""
    found = []
    each: FrameType | None = frame
    while each is not None:
        found.append(each)
        if each is last:
            break
        each = each.f_back
    return found


def _root_of(frame: FrameType) -> FrameType:
    """Return the outermost frame of user code, which is usually the endpoint."""
    found = frame
    while found.f_back is not None:
        module = str(found.f_back.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _OUTSIDE:
            break
        found = found.f_back
    return found
