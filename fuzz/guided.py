"""Coverage-guided fuzzer for Python; accepts some options of libFuzzer."""

import random
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from pathlib import Path
from types import FrameType
from typing import Any

#: Memory limit of the process: excessive allocations fail instead of swapping.
MEMORY_MAX = 1 << 30
#: More lines than any source file has.
LINES_MAX = 10_000
#: Tokens of JSON and of most text formats.
WORDS = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\ud800",
    b"\\u0000",
    b"null",
    b"true",
    b'"inf"',
)
NUMBERS = (
    b"0",
    b"-1",
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"0.5",
    b"4294967296",
    b"9" * 5000,
)

Step = tuple[str, int, int]


class Fuzzer:
    """Runs `check` on mutations of the inputs that have covered new code."""

    def __init__(
        self, sources: Sequence[Path], check: Callable[[bytes], None], options: Sequence[str]
    ) -> None:
        """Create a fuzzer for the code in some files.

        Args:
            sources: The files whose coverage is measured.
            check: Raises an exception if the input reveals a defect.
            options: `-max_total_time=`, `-max_len=`, `-artifact_prefix=`, `-seed=`, and folders
                with inputs, the first of which receives new inputs; or one input, to be run once.

        Raises:
            FileNotFoundError: A source does not exist, so its coverage would not guide anything.
        """
        for path in sources:
            path.stat()
        # A line is identified by its number, counted across all files.
        self._firsts = {str(path): at * LINES_MAX for at, path in enumerate(sources)}
        self._check = check
        named = dict(one[1:].split("=", 1) for one in options if one.startswith("-"))
        self._paths = [Path(one) for one in options if not one.startswith("-")]
        self._seconds = float(named.get("max_total_time", "60"))
        self._len_max = int(named.get("max_len", "4096"))
        self._prefix = named.get("artifact_prefix", "./")
        self._random = random.Random(int(named.get("seed", str(time.time_ns()))))
        self._seen: set[Step] = set()
        self._kept: list[bytes] = []
        self._runs = 0

    def main(self) -> int:
        """Run until the time is over or a check fails, and return the exit status."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        if len(self._paths) == 1 and self._paths[0].is_file():
            self._check(self._paths[0].read_bytes())
            return 0
        until = time.monotonic() + self._seconds
        for body in self._inputs(until):
            if not self._try(body[: self._len_max]):
                return 77
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        size = sum(map(len, self._kept))
        print(
            f"#{self._runs}\tDONE   cov: {len(self._seen)} ft: {len(self._seen)} "
            f"corp: {len(self._kept)}/{size}b lim: {self._len_max} exec/s: 0 rss: {rss}Mb"
        )
        return 0

    def _inputs(self, until: float) -> Iterator[bytes]:
        for folder in self._paths:
            for path in sorted(folder.iterdir()):
                yield path.read_bytes()
        while time.monotonic() < until:
            yield self._mutated()

    def _try(self, body: bytes) -> bool:
        self._runs += 1
        before = len(self._seen)
        try:
            self._traced(body)
        except Exception:
            traceback.print_exc()
            path = Path(f"{self._prefix}crash-{sha1(body).hexdigest()}")
            path.write_bytes(body)
            print(f"Test unit written to {path}", flush=True)
            return False
        if len(self._seen) > before:
            self._kept.append(body)
            if self._paths:
                (self._paths[0] / sha1(body).hexdigest()).write_bytes(body)
        return True

    def _traced(self, body: bytes) -> None:
        """Record each step from line to line, and each exception at the line that raised it."""
        last = 0

        def lines(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            what = arg[0].__name__ if event == "exception" else event
            line = self._firsts[frame.f_code.co_filename] + frame.f_lineno
            self._seen.add((what, last, line))
            last = line
            return lines

        def calls(frame: FrameType, event: str, arg: Any) -> Any:
            return lines if frame.f_code.co_filename in self._firsts else None

        assert threading.active_count() == 1, "only this thread is traced"
        sys.settrace(calls)
        try:
            self._check(body)
        finally:
            sys.settrace(None)

    def _mutated(self) -> bytes:
        draw = self._random
        body = bytearray(draw.choice(self._kept) if self._kept else b"")
        for _ in range(draw.randint(1, 4)):
            start = draw.randint(0, len(body))
            end = min(len(body), start + draw.choice((0, 0, 1, 2, 8, 40)))
            body[start:end] = self._piece()
        return bytes(body)

    def _piece(self) -> bytes:
        draw = self._random
        match draw.randint(0, 4):
            case 0:
                return draw.randbytes(draw.randint(0, 4))
            case 1:
                return draw.choice(WORDS)
            case 2:
                return draw.choice(NUMBERS)
            case 3:
                return draw.choice(WORDS) * draw.choice((2, 100, 4000))
            case _:
                other = draw.choice(self._kept) if self._kept else b""
                start = draw.randint(0, len(other))
                return other[start : start + draw.randint(0, 64)]
