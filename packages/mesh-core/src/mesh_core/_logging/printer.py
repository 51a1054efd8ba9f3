"""Printing of the lines of many processes on the standard streams of the controller."""

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable

from mesh_core._logging.line import LogLine, Stream

# Repeats are held for this long to be grouped; first occurrences are printed immediately.
DEFAULT_WINDOW_S = 0.2

# More texts than this within a window are a flood, in which repeats are rarely close together.
_GROUP_COUNT_MAX = 1024
_NOTHING = (0,)
_PLACE = re.compile(r"\s*\w+: *(\d+)/(\d+)\s*")


class _Group:
    """A text that was printed once, and the processes that have repeated it since.

    Attributes:
        number: Increasing number; groups are printed in this order.
        repeats: Ranks by the full name of the process.
    """

    def __init__(self, mesh: str, stream: Stream, text: str, number: int, closes_at: float) -> None:
        self.mesh = mesh
        self.stream: Stream = stream
        self.text = text
        self.number = number
        self.closes_at = closes_at
        self.repeats: dict[str, int] = {}
        self.repeat_count = 0


_Key = tuple[str, Stream, str]


class LogPrinter:
    """Prints lines prefixed with the name of their process, and groups lines that many repeat.

    The first of several equal lines is printed immediately. Equal lines that other processes of the
    mesh print within the window follow as one line: `[trainers 7 more: ranks 1-7] ready`. Lines
    that differ in any way are never grouped, and the lines of one process keep their order.

    Args:
        window_s: How long repeats are collected, in seconds; 0 prints every line separately.
        clock: Returns the monotonic time in seconds.
    """

    def __init__(
        self, window_s: float = DEFAULT_WINDOW_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._condition = threading.Condition()
        self._groups: dict[_Key, _Group] = {}
        self._group_count = 0
        # The numbers of the groups that hold repeats, by process, and these groups by number.
        self._held: dict[str, list[int]] = {}
        self._repeated: dict[int, _Group] = {}
        self._thread: threading.Thread | None = None

    def __call__(self, line: LogLine) -> None:
        """Print a line, or hold it as a repeat."""
        mesh, rank = split_name(line.name, line.slot)
        key = (mesh, line.stream, line.text)
        with self._condition:
            self._close_groups(self._clock())
            group = self._groups.get(key)
            if group is not None:
                self._hold(group, line.name, rank)
                return
            self._print_held(line.name)
            _print(line.stream, f"[{line.name}] {line.text}")
            if self._window_s > 0:
                self._open_group(key)

    def flush(self) -> None:
        """Print all lines that are held."""
        with self._condition:
            self._print_groups(self._group_count)
            self._groups.clear()

    def close(self) -> None:
        """Print all lines that are held and end the thread; later lines are printed separately."""
        with self._condition:
            self._window_s = 0
            self.flush()
            self._condition.notify()

    def close_groups(self) -> None:
        """Print the groups whose window has ended."""
        with self._condition:
            self._close_groups(self._clock())

    def _open_group(self, key: _Key) -> None:
        if len(self._groups) == _GROUP_COUNT_MAX:
            oldest = next(iter(self._groups))
            self._print_groups(self._groups[oldest].number)
            del self._groups[oldest]
        self._group_count += 1
        closes_at = self._clock() + self._window_s
        self._groups[key] = _Group(*key, self._group_count, closes_at)

    def _hold(self, group: _Group, name: str, rank: int) -> None:
        if group.number < self._held.get(name, _NOTHING)[-1]:
            self._print_held(name)  # Keeps the lines of the process in order.
        held = self._held.setdefault(name, [])
        if not held or held[-1] != group.number:
            held.append(group.number)
        group.repeats[name] = rank
        group.repeat_count += 1
        self._repeated[group.number] = group
        self._wake_thread()

    def _print_held(self, name: str) -> None:
        """Print all repeats of a process, and the repeats of others that must precede them."""
        if name in self._held:
            self._print_groups(self._held[name][-1])

    def _close_groups(self, now: float) -> None:
        over = list(
            itertools.takewhile(lambda item: item[1].closes_at <= now, self._groups.items())
        )
        if over:
            self._print_groups(over[-1][1].number)
        for key, _ in over:
            del self._groups[key]

    def _print_groups(self, last: int) -> None:
        """Print the repeats held in all groups up to a number; the groups stay open."""
        for number in sorted(self._repeated):
            if number > last:
                break
            group = self._repeated.pop(number)
            _print(group.stream, f"[{_who(group)}] {group.text}")
            for name in group.repeats:
                held = self._held[name]
                assert held[0] == number
                del held[0]
                if not held:
                    del self._held[name]
            group.repeats = {}
            group.repeat_count = 0

    def _wake_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mesh-log-window", daemon=True)
            self._thread.start()
        self._condition.notify()

    def _run(self) -> None:
        """Close windows on time; sleep without a timeout while no line is held."""
        with self._condition:
            while self._window_s > 0:
                self._close_groups(self._clock())
                if self._repeated:
                    first = next(iter(self._groups.values()))
                    self._condition.wait(max(0.001, first.closes_at - self._clock()))
                else:
                    self._condition.wait()


def split_name(name: str, slot: int) -> tuple[str, int]:
    """Parse the mesh and the rank of a process from its name.

    Example:
        >>> split_name("trainers{hosts: 1/2, gpus: 3/8}", slot=12)
        ('trainers', 11)
    """
    mesh, brace, places = name.partition("{")
    if not brace or not places.endswith("}"):
        return name, slot
    rank = 0
    for place in places[:-1].split(","):
        match = _PLACE.fullmatch(place)
        if match is None:
            return name, slot
        rank = rank * int(match[2]) + int(match[1])
    return mesh, rank


def ranges(ranks: Iterable[int]) -> str:
    """Format numbers as ranges: `0-2,5`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _who(group: _Group) -> str:
    if group.repeat_count == 1:
        return next(iter(group.repeats))
    word = "ranks" if len(set(group.repeats.values())) > 1 else "rank"
    return f"{group.mesh} {group.repeat_count} more: {word} {ranges(group.repeats.values())}"


def _print(stream: Stream, text: str) -> None:
    # Look the stream up each time, because notebooks and tests replace it.
    target = sys.stderr if stream == "stderr" else sys.stdout
    try:
        target.write(text + "\n")
        target.flush()
    except (AttributeError, OSError, ValueError):
        pass  # The stream is closed or has no reader; the processes are not at fault.
