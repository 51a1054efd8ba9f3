"""The command `python -m mesh_core.replay`."""

from __future__ import annotations

import argparse
import os
import sys

from mesh_core._errors import MeshError
from mesh_core._replay.as_test import write_test
from mesh_core._replay.debugger import debug
from mesh_core._replay.errors import ReplayDiverged, ReplayError
from mesh_core._replay.replay import Replay
from mesh_core._replay.traceback import print_users_traceback

__all__ = ["main"]

_HASH_SEED = "PYTHONHASHSEED"
_HASHES = (
    ": it depends on something that is not recorded, such as the order of a set, which differs "
    "between processes unless PYTHONHASHSEED is set"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 if the actor served all messages, 1 if it failed, 2 if the case cannot be
        replayed, 3 if the replay differs from the recorded run.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mesh_core.replay",
        description="Run a recorded actor again, in this process and without its cluster.",
    )
    parser.add_argument("case", help="the case, a file that a recorded failure has left")
    parser.add_argument(
        "--trust", action="store_true", help="execute what the case contains; required"
    )
    parser.add_argument("--actor", metavar="MESH[RANK]", help="the actor (the one that failed)")
    parser.add_argument("--until", type=int, metavar="N", help="stop before message N, in pdb")
    parser.add_argument(
        "--step", action="store_true", help="stop at the first line of each message, in pdb"
    )
    parser.add_argument("--pdb", action="store_true", help="open pdb at the line that fails")
    parser.add_argument(
        "--as-test", metavar="FOLDER", help="write a pytest file that fails as the actor did"
    )
    options = parser.parse_args(arguments)
    try:
        replay = Replay(options.case, actor=options.actor, trust=options.trust)
        if options.as_test is not None:
            print(write_test(replay, options.as_test))
            return 0
        if replay.hash_seed not in (None, os.environ.get(_HASH_SEED)):
            # The order of sets depends on it, and an interpreter reads it only when it starts.
            words = sys.argv[1:] if arguments is None else arguments
            command = [sys.executable, "-m", "mesh_core.replay", *words]
            os.execve(sys.executable, command, {**os.environ, _HASH_SEED: str(replay.hash_seed)})
        for file in replay.changed_files:
            print(f"mesh replay: {file} differs from the recorded run", file=sys.stderr)
        if options.step or options.until is not None or options.pdb:
            return debug(replay, first=options.until, is_stepping=options.step)
        return _run(replay)
    except (MeshError, OSError) as error:
        print(f"mesh replay: {error}", file=sys.stderr)
        return 2


def _run(replay: Replay) -> int:
    actor = replay.actor
    name = f"{actor.mesh}[{actor.rank}]"
    try:
        ended = replay.run()
    except ReplayError:
        raise
    except ReplayDiverged as error:
        print(f"mesh replay: {error}", file=sys.stderr)
        return 3
    except Exception as error:
        print_users_traceback(error)
        said = f"{type(error).__name__}: {error}"
        if replay.recorded_error in (None, said):
            print(f"mesh replay: {name} fails as recorded", file=sys.stderr)
            return 1
        print(f"mesh replay: {name} fails with another message{_HASHES}", file=sys.stderr)
        return 3
    if ended is not None:
        print(f"mesh replay: {ended}", file=sys.stderr)
    if actor.ended:
        print(f"mesh replay: {actor.ended}", file=sys.stderr)
    print(f"mesh replay: {name} served {replay.last} messages and did not fail", file=sys.stderr)
    is_known = replay.changed_files or ended is not None or actor.ended
    if replay.recorded_error is None or is_known:
        return 0
    neighbours = ", ".join(replay.neighbours)
    shared = f", such as the global state that it shared with {neighbours}" if neighbours else ""
    print(
        f"mesh replay: the recorded run ended with {replay.recorded_error}, and no source file has "
        f"changed: it depended on something that is not recorded{shared}",
        file=sys.stderr,
    )
    return 3
