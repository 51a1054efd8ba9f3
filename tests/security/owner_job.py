"""A program of the owner that attaches workers and calls an actor for each line of input.

It prints `ready` and the reply to each line, or `refused: ` with the reason if it cannot attach.
"""

from __future__ import annotations

import sys

from mesh_core import Actor, HostDied, attach_to_workers, configure, endpoint


class Echo(Actor):
    """Replies to calls on the worker."""

    @endpoint
    def echo(self, text: str) -> str:
        """Return the text."""
        return text


def main(workers: list[str]) -> None:
    """Attach the workers and serve standard input."""
    configure(attach_timeout_s=1.0)
    try:
        hosts = attach_to_workers(workers)
        hosts.initialized.get()
    except HostDied as error:
        print(f"refused: {error}", flush=True)
        return
    echo = hosts.spawn_procs({"procs": 1}).spawn("echo", Echo)
    print("ready", flush=True)
    for line in sys.stdin:
        print(*set(echo.echo.call(line.strip()).get().values()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
