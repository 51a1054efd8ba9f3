"""Replays of recorded failures: `python -m mesh_core.replay CASE --trust`.

A replay executes code and opens pickles that the case contains. Replay only cases that you trust.
"""

from mesh_core._replay.command import main as _main
from mesh_core._replay.errors import RecordEnded as RecordEnded
from mesh_core._replay.errors import ReplayDiverged as ReplayDiverged
from mesh_core._replay.errors import ReplayedDeath as ReplayedDeath
from mesh_core._replay.errors import ReplayError as ReplayError
from mesh_core._replay.replay import Replay as Replay

if __name__ == "__main__":
    raise SystemExit(_main())
