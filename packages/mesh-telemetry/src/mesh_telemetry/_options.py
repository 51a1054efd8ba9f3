"""What of the past is kept, where, and how much of it."""

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
    """What telemetry keeps.

    Attributes:
        retention_s: For how long rows are kept, in seconds; those of actors, meshes, their states
            and failures as long as there is room.
        proc_bytes: How many bytes the events of one process may take on its host. Messages may
            take half of them. What processes leave that have ended takes four times as many at
            most, for all of a host.
        host_cache_bytes: How much memory the telemetry process of a host may use to keep tables
            that it has made of events.
        stacks_bytes: How many bytes dumps of stacks may take on a host, besides the events. They
            are kept for `retention_s` at most, and are not moved to `spill`.
        directory: Below which folder of each host events are kept; `/dev/shm` where there is one
            if left out, else the temporary directory.
        spill: A folder on each host where rows are kept, as Parquet, when there is no more room
            for them or they are too old, and when the program ends. They can be queried while it
            runs, and with `Past` afterwards. Without it they are forgotten.
        spill_bytes: How many bytes a host may take there; the oldest files go first. None for any
            number.
        snapshot_s: Every how many seconds the live tables are written there too, so that they have
            a past; None for never. It is less often where that takes more than a twentieth of the
            time.
        otlp: Where each host exports its rows to, as OpenTelemetry has it; `"env"` for what the
            variables of OpenTelemetry say in the program. Nowhere if left out.

    Raises:
        ValueError: A number is not one that it takes, a path is relative, or what wants `spill`
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
    otlp: OtlpConfig | Literal["env"] | None = None

    def __post_init__(self) -> None:
        if not (self.retention_s > 0 and math.isfinite(self.retention_s)):
            raise ValueError(f"retention_s {self.retention_s} is not a finite number above 0")
        if self.proc_bytes < _PROC_BYTES_MIN:
            raise ValueError(
                f"proc_bytes {self.proc_bytes} is less than {_PROC_BYTES_MIN}: give more room"
            )
        if self.host_cache_bytes < 0:
            raise ValueError(f"host_cache_bytes {self.host_cache_bytes} is negative")
        if self.spill_bytes is not None and self.spill_bytes < _MIB:
            raise ValueError(f"spill_bytes {self.spill_bytes} is less than {_MIB}: give more room")
        if self.snapshot_s is not None and not self.snapshot_s >= _SNAPSHOT_S_MIN:
            raise ValueError(f"snapshot_s {self.snapshot_s} is not {_SNAPSHOT_S_MIN} or more")
        if self.spill is None and (self.spill_bytes, self.snapshot_s) != (None, None):
            raise ValueError("spill_bytes and snapshot_s are for what is in spill: set that too")
        if self.stacks_bytes < 0:
            raise ValueError(f"stacks_bytes {self.stacks_bytes} is negative")
        if self.otlp not in (None, "env") and not isinstance(self.otlp, OtlpConfig):
            raise ValueError(f"otlp {self.otlp!r}: give an OtlpConfig, or 'env'")
        for name in ("directory", "spill"):
            path = getattr(self, name)
            if path is not None and not os.path.isabs(path):
                raise ValueError(f"{name} {path!r} is a relative path: give the whole path")


def with_otlp(config: TelemetryConfig, environment: Mapping[str, str]) -> TelemetryConfig:
    """Gives the options with what the variables say of exports, if they are to.

    Raises:
        TelemetryError: What exporting takes is not installed.
        ValueError: A variable cannot be read.
    """
    if config.otlp == "env":
        config = replace(config, otlp=otlp_from(environment))
    if config.otlp is not None and not _can_export():
        raise TelemetryError("exporting takes opentelemetry-proto: install mesh-telemetry[otel]")
    return config


def _can_export() -> bool:
    try:
        return find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:
        return False
