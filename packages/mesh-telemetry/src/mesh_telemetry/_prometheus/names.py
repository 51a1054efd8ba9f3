"""Translates names of OpenTelemetry to names of Prometheus.

The rules are those of the OpenTelemetry specification, "Prometheus and OpenMetrics compatibility":
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mesh_telemetry._metrics.points import HistogramPoint, NumberPoint
from mesh_telemetry._prometheus.family import FamilyHead

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mesh_telemetry._metrics.points import Point
    from mesh_telemetry._prometheus.family import Labels

__all__ = ["attribute_labels", "head_of", "unit_name"]

_UNITS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "TiBy": "tibibytes",
    "KBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
}
_SINGULAR = {"s": "second", "min": "minute", "h": "hour", "d": "day", "m": "meter"}
#: Labels that Mesh sets, or that have a meaning in the format.
_RESERVED = frozenset({"actor", "host", "le", "mesh", "quantile", "rank"})
_VALUE_LEN_MAX = 128
_ATTRIBUTES_MAX = 16


def head_of(point: Point) -> FamilyHead:
    """Return the metric family of a data point that the program recorded."""
    kind = _kind(point)
    unit = "ratio" if point.unit == "1" and kind == "gauge" else unit_name(point.unit)
    name = _metric_name(point.name)
    if kind == "counter":
        name = name.removesuffix("_total") or "total"
    if unit and name != unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    if name == unit:
        # OpenMetrics requires something before the unit.
        unit = ""
    return FamilyHead(name, kind, unit, f"The metric {point.name} of the program.", True)


def unit_name(unit: str) -> str:
    """Return the suffix of a name for a unit; empty for none, such as `1` or `{message}`.

    Example:
        >>> unit_name("By/s")
        'bytes_per_second'
    """
    plain = re.sub(r"\{[^}]*\}", "", unit).strip()
    above, slash, below = plain.partition("/")
    name = "" if above in ("", "1") else _UNITS.get(above, above)
    if slash and below:
        name = f"{name}_per_{_SINGULAR.get(below, below)}"
    return _collapsed(re.sub(r"[^a-zA-Z0-9]", "_", name)).strip("_")


def attribute_labels(attributes: Mapping[str, Any]) -> Labels:
    """Return the labels for the attributes that the program set, ordered by name.

    Values are truncated to 128 characters. Attributes after the 16th are omitted.
    """
    labels: dict[str, str] = {}
    for key in sorted(attributes)[:_ATTRIBUTES_MAX]:
        if attributes[key] is None:
            continue
        name, value = _label_name(key), _label_value(attributes[key])
        # The specification requires this for attributes whose translated names are equal.
        labels[name] = f"{labels[name]};{value}" if name in labels else value
    return tuple(sorted(labels.items()))


def _kind(point: Point) -> Any:
    if isinstance(point, HistogramPoint):
        return "histogram"
    is_counter = isinstance(point, NumberPoint) and point.is_sum and point.is_monotonic
    return "counter" if is_counter else "gauge"


def _metric_name(name: str) -> str:
    plain = _collapsed(re.sub(r"[^a-zA-Z0-9_:]", "_", name)) or "_"
    return f"_{plain}" if plain[0].isdigit() else plain


def _label_name(name: str) -> str:
    plain = _collapsed(re.sub(r"[^a-zA-Z0-9_]", "_", name)) or "_"
    if plain[0].isdigit():
        plain = f"key_{plain}"
    return f"exported_{plain}" if plain in _RESERVED else plain


def _label_value(value: Any) -> str:
    # JSON writes true and false, and may contain lone surrogates, which cannot be encoded.
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:_VALUE_LEN_MAX].encode("utf-8", "replace").decode()


def _collapsed(name: str) -> str:
    return re.sub(r"_+", "_", name)
