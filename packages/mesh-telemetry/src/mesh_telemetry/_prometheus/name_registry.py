"""Decides which metric family gets a name, because names that programs choose may conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_telemetry._prometheus.family import series_names
from mesh_telemetry._prometheus.heads import HEADS

if TYPE_CHECKING:
    from mesh_telemetry._prometheus.family import FamilyHead

__all__ = ["NameRegistry"]


class NameRegistry:
    """The names that are taken; at first those of Mesh itself.

    A gauge `a` and a counter `a` cannot both exist, nor can a gauge `a_count` and a histogram `a`:
    their lines would have the same names. The family that is registered first gets the name.
    """

    def __init__(self) -> None:
        self._owners: dict[str, FamilyHead] = {}
        for head in HEADS:
            self.head_for(head)

    def head_for(self, wanted: FamilyHead) -> FamilyHead | None:
        """Return the family that was registered first; register the wanted one if there is none.

        Returns:
            A family with the same name, kind and unit; None if the names belong to another one.
        """
        names = series_names(wanted)
        owners = {self._owners[name] for name in names if name in self._owners}
        if not owners:
            self._owners.update(dict.fromkeys(names, wanted))
            return wanted
        if len(owners) > 1:
            return None
        (owner,) = owners
        is_same = owner._replace(text="") == wanted._replace(text="")
        return owner if is_same else None
