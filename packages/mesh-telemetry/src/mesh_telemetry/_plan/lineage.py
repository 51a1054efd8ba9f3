"""Maps columns of a plan to columns of shipped units, so that joins can ship fewer rows."""

from __future__ import annotations

from dataclasses import dataclass

import datafusion

from mesh_telemetry._plan.plan_tree import Node, expression
from mesh_telemetry._plan.units import SemiJoin, Unit

__all__ = ["Lineage"]

# By kind of join: whether it drops rows of the left and of the right side that have no match.
_DROPS = {
    "Inner": (True, True),
    "Left": (False, True),
    "Right": (True, False),
    "LeftSemi": (True, True),
}


@dataclass(frozen=True)
class _Origin:
    unit: Unit
    at: int
    # Whether rows of the unit can be omitted without changing the operators above it, up to the
    # join.
    is_reducible: bool


class Lineage:
    """Records which nodes of a plan are shipped as a unit."""

    def __init__(self) -> None:
        self._shipped: dict[Node, tuple[Unit, list[str]]] = {}

    def note(self, node: Node, unit: Unit, names: list[str]) -> None:
        """Record that a unit ships the output of a node; `names` are its first columns."""
        self._shipped[node] = unit, names

    def semi_joins(
        self,
        join: Node,
        how: str,
        pairs: list[tuple[datafusion.Expr, datafusion.Expr]],
    ) -> list[SemiJoin]:
        """Return the semi-joins through which the sides of a join can reduce each other."""
        drops_left, drops_right = _DROPS.get(how, (False, False))
        found = []
        for left, right in pairs:
            mine = self._origin(join.inputs[0], *_column(left))
            its = self._origin(join.inputs[1], *_column(right))
            if mine is None or its is None or mine.unit is its.unit:
                continue
            if drops_right and its.is_reducible and its.at < its.unit.reducible:
                found.append(SemiJoin(mine.unit, mine.at, its.unit, its.at))
            if drops_left and mine.is_reducible and mine.at < mine.unit.reducible:
                found.append(SemiJoin(its.unit, its.at, mine.unit, mine.at))
        return found

    def _origin(self, node: Node, relation: str | None, name: str | None) -> _Origin | None:
        if name is None:
            return None
        if node in self._shipped:
            unit, names = self._shipped[node]
            return _Origin(unit, names.index(name), True) if name in names else None
        if node.kind in ("Filter", "Sort", "Limit"):
            origin = self._origin(node.inputs[0], relation, name)
            cuts = node.kind == "Limit" or (
                node.kind == "Sort" and node.variant.get_fetch_val() is not None
            )
            return _Origin(origin.unit, origin.at, False) if origin and cuts else origin
        if node.kind == "SubqueryAlias":
            return self._origin(node.inputs[0], None, name)
        if node.kind == "Projection":
            return self._projected(node, relation, name)
        if node.kind == "Join" and relation is not None:
            return self._joined(node, relation, name)
        return None

    def _projected(self, node: Node, relation: str | None, name: str) -> _Origin | None:
        for raw in node.variant.projections():
            inner = expression(raw)
            given: str | None = None
            while inner.variant_name() == "Alias":
                given = given or inner.to_variant().alias()
                inner = expression(inner.to_variant().expr())
            its_relation, its_name = _column(inner)
            if (given or its_name) != name or (
                given is None and relation not in (None, its_relation)
            ):
                continue
            return self._origin(node.inputs[0], its_relation, its_name)
        return None

    def _joined(self, node: Node, relation: str, name: str) -> _Origin | None:
        sides = [each for each in node.inputs if relation in each.qualifiers]
        if len(sides) != 1:
            return None
        origin = self._origin(sides[0], relation, name)
        if origin is None or str(node.variant.join_type()) in ("Inner", "LeftSemi"):
            return origin
        return _Origin(origin.unit, origin.at, False)


def _column(expr: datafusion.Expr) -> tuple[str | None, str | None]:
    """Return the qualifier and the name of a column; no name for other expressions."""
    if expr.variant_name() != "Column":
        return None, None
    column = expr.to_variant()
    return column.relation(), column.name()
