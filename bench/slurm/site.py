"""A cluster with a user's folder, and the user's commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from tests.jobs.slurm.cluster import SlurmCluster
from tools.workspace import ROOT

_HERE = Path(__file__).parent
_FIRST = "step 0"


class Site:
    """A SLURM cluster of emulated hosts, and a user's folder that all of them see."""

    def __init__(self) -> None:
        """Start the cluster."""
        self._stack = ExitStack()
        folder = Path(mkdtemp(prefix="mesh-bench-"))
        self._stack.callback(shutil.rmtree, folder)
        (folder / "cluster").mkdir()
        self.home = folder / "home"
        self.home.mkdir()
        for name in ("train.py", "job.py"):
            shutil.copy(_HERE / name, self.home)
        shared = [folder, ROOT, Path(sys.prefix)]
        self.cluster = self._stack.enter_context(SlurmCluster(folder / "cluster", shared=shared))

    def first_line(self, words: Sequence[str]) -> float:
        """Run a command to completion; return the time until the script's first step, in seconds.

        Raises:
            RuntimeError: The command failed.
        """
        started = time.perf_counter()
        took = None
        pipe = subprocess.PIPE
        with self.cluster.controller.popen(
            words, stdout=pipe, stderr=pipe, env=self.cluster.variables, cwd=self.home
        ) as command:
            assert command.stdout is not None
            for line in command.stdout:
                if _FIRST in line and took is None:
                    took = time.perf_counter() - started
            status = command.wait()
        if status != 0 or took is None:
            raise RuntimeError(f"{' '.join(words)} ended with {status} before its first step")
        return took

    def seconds(self, words: Sequence[str]) -> float:
        """Run a command; return its duration in seconds."""
        started = time.perf_counter()
        self.cluster.controller.run(words, env=self.cluster.variables, cwd=self.home)
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()
