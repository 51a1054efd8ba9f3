"""The two text formats in which Prometheus reads metrics.

- Prometheus text format 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/
- OpenMetrics 1.0: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from mesh_telemetry._prometheus.family import HistogramValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mesh_telemetry._prometheus.family import Family, Labels

__all__ = ["OPENMETRICS", "TEXT", "exposition", "is_openmetrics_accepted"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_TYPE = "application/openmetrics-text"


def is_openmetrics_accepted(accept: str) -> bool:
    """Return whether the `Accept` header of a request prefers OpenMetrics to plain text."""
    weights: dict[str, float] = {}
    for entry in accept.split(","):
        kind, *parameters = (part.strip() for part in entry.lower().split(";"))
        weights[kind] = max(weights.get(kind, 0.0), _weight(parameters))
    wanted = weights.get(_OPENMETRICS_TYPE, 0.0)
    return wanted > 0 and wanted >= weights.get("text/plain", 0.0)


def exposition(families: Iterable[Family], *, is_openmetrics: bool) -> bytes:
    """Return metrics as text.

    Args:
        families: The metrics; no two families have lines with the same names.
        is_openmetrics: Whether to use OpenMetrics 1.0 instead of the text format 0.0.4.
    """
    lines: list[str] = []
    for family in families:
        lines += _family_lines(family, is_openmetrics)
    if is_openmetrics:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _family_lines(family: Family, is_openmetrics: bool) -> Iterator[str]:
    head = family.head
    total = f"{head.name}_total" if head.kind == "counter" else head.name
    name = head.name if is_openmetrics else total
    yield f"# HELP {name} {_escaped(head.text, is_openmetrics)}"
    yield f"# TYPE {name} {head.kind}"
    if is_openmetrics and head.unit:
        yield f"# UNIT {name} {head.unit}"
    for sample in family.samples:
        if isinstance(sample.value, HistogramValue):
            yield from _histogram_lines(head.name, sample.labels, sample.value, is_openmetrics)
        else:
            yield f"{total}{_label_text(sample.labels)} {_number(sample.value)}"


def _histogram_lines(
    name: str, labels: Labels, value: HistogramValue, is_openmetrics: bool
) -> Iterator[str]:
    count = 0
    bounds = (*value.bounds, math.inf)
    for bound, count in zip(bounds, accumulate(value.counts), strict=True):
        bucket = (*labels, ("le", _number(float(bound))))
        yield f"{name}_bucket{_label_text(bucket)} {count}"
    if is_openmetrics and (value.sum < 0 or min(value.bounds, default=0.0) < 0):
        # OpenMetrics requires sums that never decrease, so the sum is omitted, and the count with
        # it.
        return
    yield f"{name}_sum{_label_text(labels)} {_number(value.sum)}"
    yield f"{name}_count{_label_text(labels)} {count}"


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value, True)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _escaped(text: str, has_quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if has_quotes else text


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
