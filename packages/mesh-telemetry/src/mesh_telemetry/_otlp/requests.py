"""Builds OTLP requests from items of several processes."""

from __future__ import annotations

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

    from mesh_telemetry._events.proc_folder import ProcIdentity
    from mesh_telemetry._otlp.options import OtlpConfig

__all__ = ["Item", "attributes_of", "rejected", "requests", "resource_of"]

_SCOPE = "mesh"
# Collectors accept at least 4 MiB.
_BYTES_MAX = 1 << 20
_ITEMS_MAX = 5000
_DEPTH_MAX = 8

Resource = tuple[tuple[str, str | int], ...]


class Item(NamedTuple):
    """A metric, a log record or a span, and the attributes of its process."""

    resource: Resource
    message: Any


def resource_of(config: OtlpConfig, identity: ProcIdentity) -> Resource:
    """Return the attributes of a process."""
    attributes: dict[str, str | int] = {
        "service.name": config.service_name,
        "service.instance.id": f"{identity.token:016x}",
        "host.name": identity.host_name,
        "process.pid": identity.pid,
        "mesh.proc": identity.proc,
        "mesh.mesh": identity.mesh_name,
        "mesh.rank": identity.rank,
    }
    return tuple((attributes | dict(config.resource)).items())


def requests(signal: str, items: Sequence[Item]) -> Iterator[tuple[bytes, int]]:
    """Yield requests of limited size, each with its number of items."""
    some: list[Item] = []
    length = 0
    for item in items:
        size = item.message.ByteSize()
        if some and (length + size > _BYTES_MAX or len(some) >= _ITEMS_MAX):
            yield _request(signal, some), len(some)
            some, length = [], 0
        some.append(item)
        length += size
    if some:
        yield _request(signal, some), len(some)


def rejected(signal: str, reply: bytes) -> int:
    """Return how many items of an accepted request the collector rejected."""
    try:
        if signal == "metrics":
            taken = ExportMetricsServiceResponse.FromString(reply)
            return int(taken.partial_success.rejected_data_points)
        if signal == "logs":
            logged = ExportLogsServiceResponse.FromString(reply)
            return int(logged.partial_success.rejected_log_records)
        traced = ExportTraceServiceResponse.FromString(reply)
        return int(traced.partial_success.rejected_spans)
    except Exception:  # any error of protobuf: the body is not an OTLP response
        return 0


def attributes_of(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Return attributes; values that are None are omitted."""
    return [KeyValue(key=key, value=_value(it)) for key, it in attributes.items() if it is not None]


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


def _request(signal: str, items: Sequence[Item]) -> bytes:
    by_resource: dict[Resource, list[Any]] = {}
    for item in items:
        by_resource.setdefault(item.resource, []).append(item.message)
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
