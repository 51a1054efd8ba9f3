"""Failures as owners receive them, and restart policies."""

from __future__ import annotations

import sys

from mesh_core._errors import SupervisionError
from mesh_core._supervision.failure_report import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = ["MeshFailure", "RestartPolicy", "set_unhandled_fault_hook", "unhandled_fault_hook"]


class MeshFailure:
    """Argument of `__supervise__`: a failure of a mesh that the actor has spawned.

    Attributes:
        mesh: The mesh with the failed rank. For a process that died, this is its `ProcMesh`;
            `meshes` also contains the meshes of the actors that died with it.
        meshes: All meshes of this owner that the failure affects.
        error: The failure with all known details: rank, host, pid, exit status, log, cause.
        why: Why the failure was not repaired: `NoRestart`, `TooManyRestarts` or `SuperviseRaised`.
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
        """The failed rank."""
        return self.error.rank

    def report(self) -> str:
        """Format the failure as a report for humans."""
        return report(self.error)

    def __str__(self) -> str:
        return str(self.error)

    def __repr__(self) -> str:
        return f"<MeshFailure of {self.mesh_name!r} rank {self.rank}: {self.error.how()}>"


class RestartPolicy:
    """How a failed rank is restarted before its owner is notified, as in Erlang/OTP.

    Args:
        restart: `permanent` restarts a rank after any end, `transient` after a failure, and
            `temporary` never. `never` is like `temporary`, but normal exits are reported too.
        scope: `one_for_one` restarts the failed rank, `one_for_all` all ranks of the mesh.
        intensity_max: Maximum number of failures within `period_s` that are repaired; the next
            failure goes to the owner.
        period_s: Length of the window in which failures are counted, in seconds.

    Raises:
        ValueError: `restart` or `scope` is not one of these words, `intensity_max` is negative, or
            `period_s` is not positive.
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
                f"restart {restart!r} is not one of permanent, transient, temporary, never"
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
        """Convert the `restart` argument of `spawn` into a policy."""
        if isinstance(restart, RestartPolicy):
            return restart
        return RestartPolicy("never" if restart is None else restart)

    def __repr__(self) -> str:
        return (
            f"RestartPolicy({self.restart!r}, scope={self.scope!r}, "
            f"intensity_max={self.intensity_max}, period_s={self.period_s})"
        )


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Handle a failure that no caller received and no `__supervise__` handled.

    The default implementation prints a report and ends the program with status 1. If a custom hook
    returns, the failure is dropped; if it raises, the program ends.
    """
    print(failure.report(), file=sys.stderr, flush=True)
    raise SystemExit(1)


_hook: Callable[[MeshFailure], object] = unhandled_fault_hook


def set_unhandled_fault_hook(hook: Callable[[MeshFailure], object]) -> None:
    """Replace the hook. Assigning to `mesh_core.unhandled_fault_hook` has the same effect."""
    global _hook
    _hook = hook


def call_hook(failure: MeshFailure) -> None:
    """Call the current hook."""
    module = sys.modules["mesh_core"]
    assigned = vars(module).get("unhandled_fault_hook", unhandled_fault_hook)
    (assigned if assigned is not unhandled_fault_hook else _hook)(failure)
