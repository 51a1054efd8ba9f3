"""The end of a process of a job: the steps of each kind of process when it leaves the job.

A program, a process of a mesh and a session of a worker end in different ways. The runtime holds
the implementation of its process, so that actors and supervision depend on none of them.
"""

from __future__ import annotations

import sys
import threading
import traceback

from mesh_core._supervision.policy import call_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._supervision.policy import MeshFailure

__all__ = ["ENDED_BY_OWNER", "Lifecycle", "is_interactive"]

# The exit status of a session whose owner has shut down the worker.
ENDED_BY_OWNER = 10


class Lifecycle:
    """How a process ends.

    Attributes:
        status: The exit status that an unhandled failure has determined; 0 for none.
    """

    def __init__(self) -> None:
        self.status: int = 0
        self._hook_lock = threading.Lock()

    def leave(self, status: int = 0, *, is_at_once: bool = False) -> None:
        """End the process, or its session of a worker.

        Args:
            status: The exit status.
            is_at_once: Whether to kill the processes of the job on this host without a grace
                period.
        """
        raise NotImplementedError

    def root_died(self) -> None:
        """Handle the loss of the program that runs the job; the agent of a worker leaves it."""

    def shut_down(self, limit_s: float) -> None:
        """Stop everything that the program has started, and end the job.

        Args:
            limit_s: Seconds until everything that is left is killed.

        Raises:
            RuntimeError: This process is not the program.
        """
        raise RuntimeError("only the program can end its job: call shutdown_context there")

    @property
    def is_exiting(self) -> bool:
        """Whether the main thread has ended and the process is shutting down."""
        return False

    def unhandled(self, failure: MeshFailure) -> None:
        """Pass an unhandled failure to the user's hook, which by default ends the process."""
        with self._hook_lock:
            if self.status:
                # Another failure is already ending the process, and only the first is reported.
                return
            try:
                call_hook(failure)
            except SystemExit as leaving:
                status = leaving.code if isinstance(leaving.code, int) else 1
            except BaseException:
                traceback.print_exc()
                status = 1
            else:
                return
            if not is_interactive():
                self.status = status
                self.leave(status)


def is_interactive() -> bool:
    """Return whether this is an interactive session, which continues after a failure."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
