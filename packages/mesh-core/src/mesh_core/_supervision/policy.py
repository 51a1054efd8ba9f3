"""Failures as owners see them."""

from __future__ import annotations

import sys

from mesh_core._errors import SupervisionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.mesh import ProcMesh

__all__ = ["MeshFailure", "RestartPolicy", "set_unhandled_fault_hook", "unhandled_fault_hook"]


class MeshFailure:
    """What an owner is told in `__supervise__` when something that it spawned has failed.

    Attributes:
        mesh: The mesh with the failed rank; a process that died belongs to its `ProcMesh`, and the
            actors it took along are in `meshes`.
        meshes: All meshes of this owner that the failure has hit.
        error: The failure with all that is known: rank, host, pid, exit status, log, cause.
        why: Why it was not mended: `NoRestart`, `TooManyRestarts` or `SuperviseRaised`.
    """

    def __init__(
        self,
        mesh: ActorMesh[Any] | ProcMesh | None,
        meshes: tuple[ActorMesh[Any] | ProcMesh, ...],
        error: SupervisionError,
        why: str,
    ) -> None:
        self.mesh = mesh
        self.meshes = meshes
        self.error = error
        self.why = why

    @property
    def mesh_name(self) -> str:
        """The name of the mesh with the failed rank."""
        return self.error.mesh_name or "<none>"

    @property
    def rank(self) -> int | None:
        """The rank that failed."""
        return self.error.rank

    def report(self) -> str:
        """Gives the failure as a page of text for humans."""
        from mesh_core._supervision.failure_report import report

        return report(self.error)

    def __str__(self) -> str:
        return str(self.error)

    def __repr__(self) -> str:
        return f"<MeshFailure of {self.mesh_name!r} rank {self.rank}: {self.error.how()}>"


class RestartPolicy:
    """What is done about a failed rank before its owner hears of it, as in Erlang/OTP.

    Args:
        restart: `permanent` restarts after any end, `transient` after an abnormal one, `temporary`
            never; `never` is as `temporary`, but a normal exit is reported as well.
        scope: `one_for_one` restarts the rank that failed, `one_for_all` all ranks.
        intensity_max: How many failures are mended within `period_s`; the next goes to the owner.
        period_s: The window in which failures are counted, in seconds.

    Raises:
        ValueError: A word is none of those, or a number is negative.
    """

    __slots__ = ("intensity_max", "period_s", "restart", "scope")

    def __init__(
        self,
        restart: str = "permanent",
        *,
        scope: str = "one_for_one",
        intensity_max: int = 3,
        period_s: float = 60.0,
    ) -> None:
        if restart not in ("permanent", "transient", "temporary", "never"):
            raise ValueError(
                f"restart {restart!r} is none of permanent, transient, temporary, never"
            )
        if scope not in ("one_for_one", "one_for_all"):
            raise ValueError(f"scope {scope!r} is neither one_for_one nor one_for_all")
        if intensity_max < 0 or not period_s > 0:
            raise ValueError("intensity_max must be 0 or more, and period_s more than 0")
        self.restart = restart
        self.scope = scope
        self.intensity_max: int = intensity_max
        self.period_s: float = period_s

    @staticmethod
    def of(restart: str | RestartPolicy | None) -> RestartPolicy:
        """Reads what `spawn(restart=...)` was given."""
        if isinstance(restart, RestartPolicy):
            return restart
        return RestartPolicy("never" if restart is None else restart)

    def __repr__(self) -> str:
        return (
            f"RestartPolicy({self.restart!r}, scope={self.scope!r}, "
            f"intensity_max={self.intensity_max}, period_s={self.period_s})"
        )


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called for a failure that no caller waited for and no `__supervise__` has handled.

    The default prints a report and ends the program with status 1. A hook that returns drops the
    failure; one that raises ends the program all the same.
    """
    print(failure.report(), file=sys.stderr, flush=True)
    raise SystemExit(1)


_hook: Callable[[MeshFailure], object] = unhandled_fault_hook


def set_unhandled_fault_hook(hook: Callable[[MeshFailure], object]) -> None:
    """Replaces the hook. Setting `mesh_core.unhandled_fault_hook` does the same."""
    global _hook
    _hook = hook


def call_hook(failure: MeshFailure) -> None:
    """Calls the hook that is set."""
    module = sys.modules["mesh_core"]
    assigned = vars(module).get("unhandled_fault_hook", unhandled_fault_hook)
    (assigned if assigned is not unhandled_fault_hook else _hook)(failure)
