"""Reports the slow steps of a command while they run, with their usual duration.

If the command of a step prints a lot (a compiler, an installer), its output is shown only if it
fails, or with `-v`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

#: Set by `python3 -m tools -v`; child processes inherit it.
VERBOSE = "MESH_TOOLS_VERBOSE"


@contextmanager
def step(what: str, usually: str = "") -> Iterator[None]:
    """Report a step on standard error before it begins, and its duration when it has ended.

    Args:
        what: The step in the present participle, such as "building mesh-core".
        usually: Its duration on a small machine, such as "about 1 minute".
    """
    expected = f" ({usually})" if usually else ""
    print(f"{what}{expected} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def run_quietly(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run a command and show its output on standard error only if it fails, or with `-v`.

    Raises:
        subprocess.CalledProcessError: The command failed; its output has been shown.
    """
    if os.environ.get(VERBOSE):
        subprocess.run(command, check=True, stdout=sys.stderr, env=env)
        return
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr, flush=True)
        raise subprocess.CalledProcessError(done.returncode, command)
