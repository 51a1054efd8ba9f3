"""Two processes under torchrun that a workload controls, in turn with ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.spmd.training import Sizes

_STOP_S_MAX = 20


class Pair:
    """Both processes block on a message, without using CPU time, while others are measured."""

    def __enter__(self) -> Pair:
        self._folder = tempfile.TemporaryDirectory(prefix="bench")
        address = str(Path(self._folder.name) / "socket")
        with Listener(address, "AF_UNIX") as listener:
            self._torchrun = subprocess.Popen(
                [
                    sys.executable, "-m", "torch.distributed.run", "--standalone",
                    "--nproc-per-node=2", "-m", "bench.spmd.rank", address,
                ],
                stdout=sys.stderr,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            ranks: dict[str, Connection] = {}
            while len(ranks) < 2:
                connection = listener.accept()
                ranks[connection.recv()] = connection
        self._ranks = [ranks[name] for name in sorted(ranks)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for rank in self._ranks:
            rank.send(None)
        self._torchrun.wait(_STOP_S_MAX)
        self._folder.cleanup()

    def hold(self, nbytes: int) -> None:
        """Make each process create a tensor."""
        self._ask("hold", nbytes)

    def reduce(self) -> float:
        """Average the tensor in place; return the duration in the slower process, in seconds."""
        return float(max(self._ask("reduce")))

    def clone_and_reduce(self) -> float:
        """Average a copy of the tensor; return the duration in the slower process, in seconds."""
        return float(max(self._ask("clone_and_reduce")))

    def prepare(self, sizes: Sizes, steps: int) -> dict[str, float]:
        """Prepare every variant of the training; return the losses after some steps."""
        losses: dict[str, float] = self._ask("prepare", sizes, steps)[0]
        return losses

    def train(self, way: str, steps: int) -> float:
        """Train; return the duration in the slower process, in seconds."""
        return float(max(self._ask("train", way, steps)))

    def pin(self, cores: list[int]) -> None:
        """Restrict both processes to some cores."""
        self._ask("pin", cores)

    def _ask(self, name: str, *arguments: Any) -> list[Any]:
        for rank in self._ranks:
            rank.send((name, arguments))
        return [rank.recv() for rank in self._ranks]
