"""The progress bar of `map`, drawn by tqdm or rich, whichever is installed."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

__all__ = ["ProgressBar"]


class ProgressBar:
    """A progress bar on standard error.

    Args:
        name: The text in front of the bar.
        count: The number of steps, if it is known.

    Raises:
        ModuleNotFoundError: Neither tqdm nor rich is installed.
    """

    def __init__(self, name: str, count: int | None) -> None:
        self._tqdm: Any = None
        self._rich: Any = None
        try:
            self._tqdm = resolve_name("tqdm.auto:tqdm")(total=count, desc=name)
        except ModuleNotFoundError:
            self._start_rich(name, count)

    def _start_rich(self, name: str, count: int | None) -> None:
        try:
            console = resolve_name("rich.console:Console")(stderr=True)
            progress = resolve_name("rich.progress:Progress")(console=console)
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "progress=True needs tqdm or rich: pip install tqdm", name="tqdm"
            ) from None
        self._rich = progress
        self._task = progress.add_task(name, total=count)
        progress.start()

    def advance(self) -> None:
        """Show one more step."""
        if self._tqdm is not None:
            self._tqdm.update(1)
        else:
            self._rich.advance(self._task)

    def close(self) -> None:
        """Keep the current state of the bar, and end its line; later calls do nothing."""
        if self._tqdm is not None:
            self._tqdm.close()
        else:
            self._rich.stop()
