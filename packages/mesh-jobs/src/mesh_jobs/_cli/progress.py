"""A progress display for commands that wait for the hosts of a job."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesh_jobs._cli.output import progress_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_jobs._job.status import JobStatus

__all__ = ["shown_progress"]


@contextmanager
def shown_progress(is_quiet: bool = False) -> Iterator[Callable[[JobStatus], None]]:
    """Yield a function for each new status; on a terminal, a status line shows the progress."""
    console = progress_console()
    if is_quiet or not console.is_terminal:
        yield lambda status: None
        return
    began = time.monotonic()
    latest: list[JobStatus] = []
    over = threading.Event()
    with console.status("requesting hosts") as line:

        def keep_time() -> None:
            while not over.wait(0.5):
                line.update(_text(latest[-1] if latest else None, time.monotonic() - began))

        ticking = threading.Thread(target=keep_time, daemon=True)
        ticking.start()
        try:
            yield latest.append
        finally:
            over.set()
            ticking.join()


def _text(status: JobStatus | None, elapsed_s: float) -> str:
    if status is None:
        return f"requesting hosts  {elapsed_s:.0f} s"
    reasons = [status.reason, *(host.reason for host in status.hosts if not host.is_up)]
    why = next((f"  {reason}" for reason in reasons if reason), "")
    return f"{status.up} of {len(status.hosts)} hosts up  {elapsed_s:.0f} s{why}"
