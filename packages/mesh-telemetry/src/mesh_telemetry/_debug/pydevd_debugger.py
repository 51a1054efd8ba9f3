"""The debugger of debugpy, `pydevd`, which controls all threads of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Importing debugpy makes `pydevd` importable.
import debugpy.server.api  # noqa: F401
import pydevd  # pyright: ignore[reportMissingImports]
from _pydevd_bundle.pydevd_api import PyDevdAPI  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["PydevdDebugger"]


class PydevdDebugger:
    """The `pydevd` of this process."""

    @property
    def is_attached(self) -> bool:
        """Whether an editor is attached and has sent its configuration."""
        return bool(pydevd._is_attached())

    def listen(
        self, address: tuple[str, int], token: str, skipped: tuple[str, ...]
    ) -> tuple[str, int]:
        """Listen for debug adapters; return the address.

        Args:
            address: The address; port 0 for any free port.
            token: The token that debug adapters must send.
            skipped: Folders of code in which it must not stop.
        """
        bound: tuple[str, int] = pydevd._enable_attach(
            address, dont_trace_start_patterns=skipped, access_token=token
        )
        return bound

    def pause(self, frame: FrameType) -> None:
        """Pause the calling thread in a frame."""
        pydevd.settrace(
            suspend=True,
            trace_only_current_thread=True,
            patch_multiprocessing=False,
            stop_at_frame=frame,
        )

    def disconnect(self) -> None:
        """Let all paused threads continue, and drop the breakpoints."""
        debugger = pydevd.get_global_debugger()
        if debugger is not None:
            with debugger._main_lock:
                PyDevdAPI().request_disconnect(debugger, resume_threads=True)
