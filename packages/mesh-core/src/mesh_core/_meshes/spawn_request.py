"""The request to start an actor in a process."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._core import Region
    from mesh_core._meshes.mesh_entry import MeshEntry
    from mesh_core._meshes.proc_table import ProcTable

__all__ = ["SpawnRequest"]


class SpawnRequest:
    """Description of an actor, sent to each process that starts one.

    Attributes:
        cls: The actor class.
        args: The positional arguments of `__init__`.
        kwargs: The keyword arguments of `__init__`.
        name: The name of the mesh.
        table: The processes.
        region: The subset of the processes that the mesh is on.
        owner: The process and port of the owner, which spawned the mesh.
        owner_name: The address of the owner, for display.
        window: The maximum number of outstanding messages per sender.
        moved: The instance with its state, if the actor continues after a move; None for a new one.
        owned: The meshes that the actor owned before a move.
    """

    __slots__ = (
        "args",
        "cls",
        "kwargs",
        "moved",
        "name",
        "owned",
        "owner",
        "owner_name",
        "region",
        "table",
        "window",
    )

    def __init__(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        table: ProcTable,
        region: Region,
        owner: tuple[int, int],
        owner_name: str,
        window: int,
        moved: Any = None,
        owned: tuple[MeshEntry, ...] = (),
    ) -> None:
        self.cls: type = cls
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.name: str = name
        self.table: ProcTable = table
        self.region: Region = region
        self.owner: tuple[int, int] = owner
        self.owner_name: str = owner_name
        self.window: int = window
        self.moved: Any = moved
        self.owned: tuple[MeshEntry, ...] = owned
