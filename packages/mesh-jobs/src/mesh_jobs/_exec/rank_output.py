"""The output of ranks, printed line by line with the name of the rank, and stored in files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import Point
from mesh_jobs._exec.rank_environment import rank_folder, rank_label

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from mesh_core import Extent

__all__ = ["RankLine", "RankOutput", "show_with_prefix"]

# Longer lines are printed in pieces.
_LINE_LEN_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class RankLine:
    """A line of output of one rank."""

    mesh: str
    place: Point
    stream: str
    """`stdout` or `stderr`."""
    text: str
    """The line without its line ending."""


def show_with_prefix(line: RankLine) -> None:
    """Print a line after the name of its rank, to the stream that it came from."""
    stream = sys.stderr if line.stream == "stderr" else sys.stdout
    # A single write keeps lines of several threads from being interleaved.
    stream.write(f"[{rank_label(line.mesh, line.place)}] {line.text}\n")
    stream.flush()


class RankOutput:
    """Receiver for the output of ranks."""

    def __init__(
        self,
        mesh: str,
        extent: Extent,
        *,
        folder: str | PathLike[str] | None = None,
        show: Callable[[RankLine], object] = show_with_prefix,
    ) -> None:
        self._mesh = mesh
        self._extent = extent
        self._show = show
        self._folder = None if folder is None else Path(folder)
        self._begun: dict[tuple[int, str], bytes] = {}
        if self._folder is not None:
            for rank in range(extent.nelements):
                self.folder_of(rank).mkdir(parents=True, exist_ok=True)
                for stream in ("stdout", "stderr"):
                    (self.folder_of(rank) / f"{stream}.txt").write_bytes(b"")

    def folder_of(self, rank: int) -> Path:
        """Return the folder of a rank's files."""
        return rank_folder(self._folder or Path(), self._mesh, Point(rank, self._extent))

    def take(self, rank: int, stream: str, piece: bytes) -> None:
        """Process a piece of a rank's output."""
        self._keep(rank, stream, piece)
        begun = self._begun.pop((rank, stream), b"") + piece
        *lines, rest = begun.split(b"\n")
        for line in lines:
            self._emit_line(rank, stream, line)
        while len(rest) > _LINE_LEN_MAX:
            self._emit_line(rank, stream, rest[:_LINE_LEN_MAX])
            rest = rest[_LINE_LEN_MAX:]
        if rest:
            self._begun[rank, stream] = rest

    def ended(self, rank: int, status: int) -> None:
        """Print the incomplete last line of a rank, and store its exit status."""
        for stream in ("stdout", "stderr"):
            if rest := self._begun.pop((rank, stream), b""):
                self._emit_line(rank, stream, rest)
        if self._folder is not None:
            (self.folder_of(rank) / "exit_code.txt").write_text(f"{status}\n", encoding="ascii")

    def _keep(self, rank: int, stream: str, piece: bytes) -> None:
        if self._folder is not None:
            # Files are not kept open, because there may be more ranks than a process may have open
            # files.
            with (self.folder_of(rank) / f"{stream}.txt").open("ab") as file:
                file.write(piece)

    def _emit_line(self, rank: int, stream: str, line: bytes) -> None:
        text = line.decode(errors="replace").removesuffix("\r")
        self._show(RankLine(self._mesh, Point(rank, self._extent), stream, text))
