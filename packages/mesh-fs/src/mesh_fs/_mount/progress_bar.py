"""The progress of transfers as a bar on a terminal. Only this module imports rich."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import progress
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_fs._mount.progress import TransferProgress

__all__ = ["progress_bar"]


@contextmanager
def progress_bar() -> Iterator[Callable[[TransferProgress], None]]:
    """Show a bar until the `with` block ends; yield the function that updates it."""
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("files", total=None)

        def report(progress: TransferProgress) -> None:
            bar.update(
                task,
                description=f"{progress.files} files on {progress.whole_hosts} of "
                f"{progress.hosts} hosts",
                total=progress.total_bytes,
                completed=progress.here_bytes,
            )

        yield report
