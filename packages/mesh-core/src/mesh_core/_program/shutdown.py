"""Ending a job before its program ends."""

from __future__ import annotations

import math

from mesh_core._calls.coroutine_future import run_in_thread
from mesh_core._configuration.config import effective
from mesh_core._runtime.runtime import runtime_if_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._calls.future import Future

__all__ = ["shutdown_context"]


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stop everything that the program has started; the next use of Mesh starts a new job.

    Args:
        host_timeout: Seconds until everything that is left is killed. Default: `stop_grace_s` plus
            `cleanup_timeout_s`.

    Raises:
        ValueError: The timeout is negative or not finite.
        RuntimeError: The caller is an actor in another process; raised by the future.
    """
    if host_timeout is not None and not (host_timeout >= 0 and math.isfinite(host_timeout)):
        raise ValueError(f"host_timeout {host_timeout} is not a finite number from 0 up")
    config = effective()
    limit_s = config.stop_grace_s + config.cleanup_timeout_s
    if host_timeout is not None:
        limit_s = host_timeout

    def end() -> None:
        current = runtime_if_any()
        if current is not None:
            current.lifecycle.shut_down(limit_s)

    return run_in_thread(end)
