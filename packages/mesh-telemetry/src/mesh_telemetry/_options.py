"""Options of telemetry: what is recorded, where, and for how long."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._otlp.options import OtlpConfig, otlp_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TelemetryConfig", "with_otlp"]

_MIB = 1 << 20
_PROC_BYTES_MIN = 256 * 1024
_SNAPSHOT_S_MIN = 0.1


@dataclass(frozen=True)
class TelemetryConfig:
    """Options of telemetry.

    Attributes:
        retention_s: Age in seconds at which rows are evicted. Rows of actors, meshes, their status
            and failures are evicted only for lack of space.
        proc_bytes: Space in bytes for the events of one process on its host; messages may use half
            of it. The data of all exited processes of a host is limited to four times this value.
        host_cache_bytes: Memory in bytes that the telemetry process of a host may use to cache
            tables that it has decoded from events.
        stacks_bytes: Space in bytes on a host for dumps of stacks, in addition to the events. Dumps
            are kept for at most `retention_s` and are not moved to `spill`.
        directory: The directory on each host in which events are recorded. If omitted, `/dev/shm`
            if it exists, else the temporary directory.
        spill: A directory on each host to which rows are written as Parquet when they are evicted
            and when the program ends. Queries read them while the program runs, and `Archive` reads
            them afterwards. If omitted, evicted rows are discarded.
        spill_bytes: Limit in bytes for the spill directory of a host; the oldest files are deleted
            first. No limit if None.
        snapshot_s: Interval in seconds at which live tables are also written to `spill`, so that
            they have a history. It is longer if writing takes more than a twentieth of the time.
            Never if None.
        hang_timeout_s: How long a collective of `torch.distributed` may take before telemetry looks
            for ranks that have not joined it, in seconds. Never if None.
        replica_bytes: Space in bytes on another host for a copy of the last minute of each host,
            which queries read after the host is lost. No copies if 0.
        otlp: Where each host exports its rows with OpenTelemetry. `"env"` reads the standard
            variables of OpenTelemetry in the program. No export if None.

    Raises:
        ValueError: A number is out of range, a path is relative, or an option that requires `spill`
            is set without it.

    Example:
        >>> TelemetryConfig(retention_s=600).proc_bytes
        16777216
    """

    retention_s: float = 3600.0
    proc_bytes: int = 16 * _MIB
    host_cache_bytes: int = 256 * _MIB
    stacks_bytes: int = 64 * _MIB
    directory: str | None = None
    spill: str | None = None
    spill_bytes: int | None = None
    snapshot_s: float | None = None
    hang_timeout_s: float | None = 0.8
    replica_bytes: int = 16 * _MIB
    otlp: OtlpConfig | Literal["env"] | None = None

    def __post_init__(self) -> None:
        if not (self.retention_s > 0 and math.isfinite(self.retention_s)):
            raise ValueError(f"retention_s {self.retention_s} is not a positive finite number")
        if self.proc_bytes < _PROC_BYTES_MIN:
            raise ValueError(
                f"proc_bytes {self.proc_bytes} is below the minimum of {_PROC_BYTES_MIN}"
            )
        if self.host_cache_bytes < 0:
            raise ValueError(f"host_cache_bytes {self.host_cache_bytes} is negative")
        if self.spill_bytes is not None and self.spill_bytes < _MIB:
            raise ValueError(f"spill_bytes {self.spill_bytes} is below the minimum of {_MIB}")
        if self.snapshot_s is not None and not self.snapshot_s >= _SNAPSHOT_S_MIN:
            raise ValueError(
                f"snapshot_s {self.snapshot_s} is below the minimum of {_SNAPSHOT_S_MIN}"
            )
        if self.hang_timeout_s is not None and not self.hang_timeout_s > 0:
            raise ValueError(f"hang_timeout_s {self.hang_timeout_s} is not positive")
        if self.spill is None and (self.spill_bytes, self.snapshot_s) != (None, None):
            raise ValueError("spill_bytes and snapshot_s require spill: set it too")
        if self.replica_bytes < 0:
            raise ValueError(f"replica_bytes {self.replica_bytes} is negative")
        if self.stacks_bytes < 0:
            raise ValueError(f"stacks_bytes {self.stacks_bytes} is negative")
        if self.otlp not in (None, "env") and not isinstance(self.otlp, OtlpConfig):
            raise ValueError(f"invalid otlp {self.otlp!r}: pass an OtlpConfig or 'env'")
        for name in ("directory", "spill"):
            path = getattr(self, name)
            if path is not None and not os.path.isabs(path):
                raise ValueError(f"{name} {path!r} is a relative path: pass an absolute path")


def with_otlp(config: TelemetryConfig, environment: Mapping[str, str]) -> TelemetryConfig:
    """Return the options with the export resolved from environment variables if requested.

    Raises:
        TelemetryError: A package that the export requires is not installed.
        ValueError: A variable cannot be parsed.
    """
    if config.otlp == "env":
        config = replace(config, otlp=otlp_from(environment))
    if config.otlp is not None and not _can_export():
        raise TelemetryError(
            "exporting requires opentelemetry-proto: install torchmesh-telemetry[otel]"
        )
    return config


def _can_export() -> bool:
    try:
        return find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:
        return False
