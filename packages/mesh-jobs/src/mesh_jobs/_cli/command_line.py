"""One run of the command line, which reports each error in one line."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from mesh_core import ActorError, MeshError, SupervisionError
from mesh_jobs._cli.app import make_app
from mesh_jobs._cli.command_context import JobCommands
from mesh_jobs._cli.output import print_json

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["run_command_line"]

# Commands that pass on the exit status of a program use a separate status for their own failures.
_RELAYING = ("run", "exec", "shell", "spmd", "attach", "forward")
_RELAY_FAILED = 125
_FAILED = 1
_BROKEN = 70
_WITH_TRACEBACK = "MESH_TRACEBACK"


def run_command_line() -> None:
    """Run the command that the arguments of this process name, and exit with its status."""
    # The signals raise an exception, so that contexts are exited normally.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    try:
        make_app(next(iter(sys.argv[1:]), None))(obj=JobCommands())
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except Exception as error:
        if os.environ.get(_WITH_TRACEBACK):
            raise
        status = _report_error(error)
    else:
        return
    sys.exit(status)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _report_error(error: Exception) -> int:
    """Print an error, and return the exit status."""
    known = (MeshError, ValueError, OSError)
    text = str(error) or type(error).__name__
    if isinstance(error, (ActorError, SupervisionError)):
        # The rest is the remote traceback, or advice for programs.
        text = text.partition("\n")[0]
    if not isinstance(error, known):
        text = (
            f"internal error: {type(error).__name__}: {text}: set {_WITH_TRACEBACK}=1 to see the "
            "traceback, and report it"
        )
    arguments = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    if "--json" in arguments:
        print_json({"error": {"type": type(error).__name__, "message": text}})
    else:
        _print_error(text)
    if not isinstance(error, known):
        return _BROKEN
    return _RELAY_FAILED if arguments[:1] and arguments[0] in _RELAYING else _FAILED


def _print_error(text: str) -> None:
    print(f"mesh: {text}", file=sys.stderr)
