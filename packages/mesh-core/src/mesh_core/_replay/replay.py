"""A case as something to run: the public interface of replays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from mesh_core._processes.exit_report import signal_name
from mesh_core._replay.errors import NotReplayable, RecordEnded, ReplayedDeath, ReplayError
from mesh_core._replay.play import call_directly, play
from mesh_core._replay.record import Record
from mesh_core._replay.source import changed_modules
from mesh_core._replay.trusted_case import read_trusted_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from mesh_core._cases.case import Case, RecordedActor

__all__ = ["Replay"]


class Replay:
    """The replay of one actor of a case, in this process and without other ones.

    Args:
        path: The case.
        actor: The actor, as `mesh[rank]` or the name of its mesh. Default: the failed actor.
        trust: Whether the case may execute code, which its pickles and modules contain.

    Raises:
        CaseError: The file is not a case, or is damaged.
        ReplayError: `trust` is False, the actor is not in the case, or its record is not complete.
    """

    def __init__(
        self, path: str | PathLike[str], *, actor: str | None = None, trust: bool = False
    ) -> None:
        self.path: Path = Path(path)
        self.case: Case = read_trusted_case(self.path, trust)
        self.actor: RecordedActor = _find(self.case, actor)
        self._record = Record(self.actor)
        self.last: int = self._record.last

    @property
    def changed_files(self) -> list[str]:
        """The source files that differ from the recorded run."""
        return changed_modules(self.case)

    def run(
        self, until: int | None = None, through: Callable[..., Any] | None = None
    ) -> RecordEnded | None:
        """Run the actor up to a message, and raise the exception with which it fails.

        Args:
            until: The number of the last message. Default: the last one of the record.
            through: Calls each endpoint: a function of the number of the message, the name of the
                endpoint, a function and its arguments.

        Returns:
            The reason why the replay ended early, if the actor continued beyond the end of the
            record, which happens once the cause of the failure is corrected. None if the actor
            served all messages.

        Raises:
            Exception: The actor failed, with this exception.
            ReplayDiverged: It behaves differently from the recorded run.
            ReplayError: The record is not complete.
        """
        __tracebackhide__ = True
        try:
            # A run consumes its record.
            error = play(self.case, Record(self.actor), until, through or call_directly)
        except RecordEnded as ended:
            return ended
        except NotReplayable as error:
            raise ReplayError(f"{self._name} cannot be replayed: {error}") from None
        if error is not None:
            raise error
        return None

    @property
    def hash_seed(self) -> str | None:
        """The value of `PYTHONHASHSEED` in the recorded process, if it was set."""
        seed = self._record.begin_fields.get("hash_seed")
        return seed if isinstance(seed, str) else None

    @property
    def recorded_error(self) -> str | None:
        """The exception with which the recorded run ended; None if it did not fail."""
        record = self._record
        outcome = None if record.failing is None else record.outcome(record.failing)
        if outcome is not None:
            return str(outcome.fields["error"])
        return None if record.failed is None else str(record.failed.fields["error"])

    @property
    def neighbours(self) -> list[str]:
        """The other recorded actors of the process, with which the actor shared global state."""
        return [
            f"{one.mesh}[{one.rank}]"
            for one in self.case.actors
            if one is not self.actor and (one.proc, one.pid) == (self.actor.proc, self.actor.pid)
        ]

    def run_isolated(self) -> None:
        """Run the actor in a separate process, because the actor may kill its process.

        Raises:
            ReplayedDeath: The process died, as the recorded one did.
            ReplayError: It exited with another status than 0; its output was printed.
        """
        command = [sys.executable, "-m", "mesh_core.replay", str(self.path), "--trust"]
        done = subprocess.run([*command, "--actor", self._name], check=False)
        if done.returncode < 0:
            killer = signal_name(-done.returncode)
            raise ReplayedDeath(f"the process of {self._name} was killed by {killer}")
        if done.returncode:
            raise ReplayError(f"the replay of {self._name} exited with status {done.returncode}")

    @property
    def is_death(self) -> bool:
        """Whether the process of the actor died while it served its last message."""
        record = self._record
        return record.last > 0 and record.outcome(record.last) is None and record.failed is None

    @property
    def _name(self) -> str:
        return f"{self.actor.mesh}[{self.actor.rank}]"


def _find(case: Case, wanted: str | None) -> RecordedActor:
    if wanted is None:
        if not case.actors:
            raise ReplayError("the case contains no actor")
        return case.actors[case.failed or 0]
    for actor in case.actors:
        if wanted in (actor.mesh, f"{actor.mesh}[{actor.rank}]"):
            return actor
    names = ", ".join(f"{actor.mesh}[{actor.rank}]" for actor in case.actors)
    raise ReplayError(f"the case has no actor {wanted!r}: it has {names}")
