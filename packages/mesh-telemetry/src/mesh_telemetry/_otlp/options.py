"""Options of the export with OTLP over HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OtlpConfig", "otlp_from"]

_ENDPOINT = "http://localhost:4318"
_INTERVAL_S_MIN = 0.05


@dataclass(frozen=True)
class OtlpConfig:
    """Options of the export to an OpenTelemetry collector, which each host performs separately.

    Attributes:
        endpoint: The address of the collector for OTLP over HTTP; rows are posted to `/v1/metrics`,
            `/v1/logs` and `/v1/traces` below it.
        headers: Headers of each request, such as a token.
        metrics: Whether to export measurements, and metrics derived from messages.
        logs: Whether to export the printed lines of processes, and failures.
        traces: Whether to export spans.
        calls: Whether to export calls of endpoints as spans too; requires `traces`.
        interval_s: The time between two exports, in seconds.
        timeout_s: The maximum time without a response from the collector, in seconds.
        retry_s: The time for which a request is retried before it is dropped, in seconds.
        service_name: `service.name` of all processes.
        resource: Other attributes of all processes.

    Raises:
        ValueError: The endpoint is not a URL, or a number is out of range.

    Example:
        >>> OtlpConfig("http://collector:4318", resource={"deployment.environment": "test"}).traces
        True
    """

    endpoint: str = _ENDPOINT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: bool = True
    logs: bool = True
    traces: bool = True
    calls: bool = True
    interval_s: float = 1.0
    timeout_s: float = 10.0
    retry_s: float = 300.0
    service_name: str = "mesh"
    resource: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        address = urlsplit(self.endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(
                f"endpoint {self.endpoint!r} is not a URL: use the form http://host:4318"
            )
        for name in ("interval_s", "timeout_s", "retry_s"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} {value} is not a positive finite number")
        if self.interval_s < _INTERVAL_S_MIN:
            raise ValueError(
                f"interval_s {self.interval_s} is below the minimum of {_INTERVAL_S_MIN}"
            )


def otlp_from(environment: Mapping[str, str]) -> OtlpConfig | None:
    """Read the standard variables of OpenTelemetry; return None if no endpoint is set.

    Args:
        environment: The variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
            `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_METRIC_EXPORT_INTERVAL` in
            milliseconds, and `OTEL_SDK_DISABLED`, for which `true` disables the export.

    Raises:
        ValueError: A variable cannot be parsed.
    """
    endpoint = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if not endpoint or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    resource = _pairs(environment, "OTEL_RESOURCE_ATTRIBUTES")
    named = resource.pop("service.name", "")
    interval = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or "1000"
    try:
        interval_s = float(interval) / 1000
    except ValueError:
        raise ValueError(
            f"invalid OTEL_METRIC_EXPORT_INTERVAL={interval}: pass a number of milliseconds"
        ) from None
    return OtlpConfig(
        endpoint,
        _pairs(environment, "OTEL_EXPORTER_OTLP_HEADERS"),
        interval_s=interval_s,
        service_name=environment.get("OTEL_SERVICE_NAME", "").strip() or named or "mesh",
        resource=resource,
    )


def _pairs(environment: Mapping[str, str], variable: str) -> dict[str, str]:
    """Parse `name=value,name=value`; both are percent-encoded."""
    found = {}
    for pair in environment.get(variable, "").split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            found[unquote(name.strip())] = unquote(value.strip())
        elif pair.strip():
            # The error does not show the pair, because it may be a secret.
            raise ValueError(
                f"{variable} has an entry without a value: use the form name=value,name=value"
            )
    return found
