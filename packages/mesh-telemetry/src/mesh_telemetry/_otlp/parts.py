"""Builds OTLP requests from items of several processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_telemetry._events.proc_folder import Place
    from mesh_telemetry._otlp.options import OtlpConfig

__all__ = ["Part", "attributes_of", "json_attributes", "rejected", "requests", "resource_of"]

_SCOPE = "mesh"
# Collectors accept at least 4 MiB.
_BYTES_MAX = 1 << 20
_PARTS_MAX = 5000
_DEPTH_MAX = 8

Resource = tuple[tuple[str, str | int], ...]


class Part(NamedTuple):
    """A metric, a log record or a span, and the attributes of its process."""

    resource: Resource
    message: Any


def resource_of(config: OtlpConfig, place: Place) -> Resource:
    """Return the attributes of a process."""
    said: dict[str, str | int] = {
        "service.name": config.service_name,
        "service.instance.id": f"{place.token:016x}",
        "host.name": place.host_name,
        "process.pid": place.pid,
        "mesh.proc": place.proc,
        "mesh.mesh": place.mesh_name,
        "mesh.rank": place.rank,
    }
    return tuple((said | dict(config.resource)).items())


def requests(signal: str, parts: Sequence[Part]) -> Iterator[tuple[bytes, int]]:
    """Yield requests of limited size, each with its number of items."""
    some: list[Part] = []
    length = 0
    for part in parts:
        size = part.message.ByteSize()
        if some and (length + size > _BYTES_MAX or len(some) >= _PARTS_MAX):
            yield _request(signal, some), len(some)
            some, length = [], 0
        some.append(part)
        length += size
    if some:
        yield _request(signal, some), len(some)


def rejected(signal: str, answer: bytes) -> int:
    """Return how many items of an accepted request the collector rejected."""
    try:
        if signal == "metrics":
            taken = ExportMetricsServiceResponse.FromString(answer)
            return int(taken.partial_success.rejected_data_points)
        if signal == "logs":
            logged = ExportLogsServiceResponse.FromString(answer)
            return int(logged.partial_success.rejected_log_records)
        traced = ExportTraceServiceResponse.FromString(answer)
        return int(traced.partial_success.rejected_spans)
    except Exception:  # any error of protobuf: the body is not an OTLP response
        return 0


def attributes_of(said: Mapping[str, Any]) -> list[KeyValue]:
    """Return attributes; values that are None are omitted."""
    return [KeyValue(key=key, value=_value(it)) for key, it in said.items() if it is not None]


def json_attributes(text: str) -> dict[str, Any]:
    """Parse the attributes of a row."""
    said = json.loads(text)
    return said if isinstance(said, dict) else {}


def _value(value: Any, depth: int = 0) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list) and depth < _DEPTH_MAX:
        return AnyValue(array_value=ArrayValue(values=[_value(one, depth + 1) for one in value]))
    if isinstance(value, dict) and depth < _DEPTH_MAX:
        pairs = [KeyValue(key=str(key), value=_value(it, depth + 1)) for key, it in value.items()]
        return AnyValue(kvlist_value=KeyValueList(values=pairs))
    # JSON may contain lone surrogates, which cannot be encoded.
    return AnyValue(string_value=str(value).encode("utf-8", "replace").decode())


def _request(signal: str, parts: Sequence[Part]) -> bytes:
    by_resource: dict[Resource, list[Any]] = {}
    for part in parts:
        by_resource.setdefault(part.resource, []).append(part.message)
    request: Any
    if signal == "metrics":
        request = ExportMetricsServiceRequest()
    elif signal == "logs":
        request = ExportLogsServiceRequest()
    else:
        request = ExportTraceServiceRequest()
    for resource, messages in by_resource.items():
        if signal == "metrics":
            group = request.resource_metrics.add()
            scope = group.scope_metrics.add()
            scope.metrics.extend(messages)
        elif signal == "logs":
            group = request.resource_logs.add()
            scope = group.scope_logs.add()
            scope.log_records.extend(messages)
        else:
            group = request.resource_spans.add()
            scope = group.scope_spans.add()
            scope.spans.extend(messages)
        scope.scope.name = _SCOPE
        group.resource.attributes.extend(attributes_of(dict(resource)))
    return bytes(request.SerializeToString())
