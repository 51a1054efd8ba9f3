"""The services of a host other than queries.

They are stacks, rows on disk, exports, and metrics for Prometheus. All of them need Arrow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mesh_telemetry._disk.spill import Spill
from mesh_telemetry._heap.host_heaps import HostHeaps
from mesh_telemetry._otlp.options import OtlpConfig
from mesh_telemetry._prometheus.host_metrics import HostMetrics
from mesh_telemetry._stacks.host_stacks import HostStacks

_missing: ImportError | None = None
try:
    from mesh_telemetry._otlp.export import OtlpExport
except ImportError as error:
    # OpenTelemetry is an optional dependency.
    _missing = error

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._disk.stored_runs import HostMetadata
    from mesh_telemetry._options import TelemetryConfig

__all__ = ["HostServices"]


class HostServices:
    """The stacks of a host, its rows on disk, their export, and its metrics.

    Args:
        folder: The folder of the host.
        spilled: The folder for evicted rows of the host; None if they are discarded.
        metadata: The description of the host.
        config: The options.

    Attributes:
        stacks: Takes stacks and stores them.
        heaps: Takes heap snapshots and stores their rows.
        metrics: Counts events for Prometheus, from the first scrape on.
    """

    def __init__(
        self, folder: Path, spilled: Path | None, metadata: HostMetadata, config: TelemetryConfig
    ) -> None:
        self._folder = folder
        self._spilled = spilled
        self._metadata = metadata
        self._config = config
        self._spill: Spill | None = None
        self._export: OtlpExport | None = None
        self.stacks: HostStacks = HostStacks(folder, metadata.name, config)
        self.heaps: HostHeaps = HostHeaps(folder, metadata.name, config)
        self.metrics: HostMetrics = HostMetrics(folder, spilled, metadata.own_proc, metadata.name)

    def start(self) -> None:
        """Start writing evicted rows to disk and exporting rows, if this is configured."""
        if self._spilled is not None:
            self._spill = Spill(self._folder, self._spilled, self._metadata, self._config)
        if not isinstance(self._config.otlp, OtlpConfig):
            return
        if _missing is not None:
            text = f"mesh-telemetry: cannot export from {self._metadata.name}"
            print(f"{text}: {_missing}: install torchmesh-telemetry[otel] there", file=sys.stderr)
            return
        self._export = OtlpExport(
            self._config.otlp, self._folder, self._spilled, self._metadata.own_proc
        )

    def close(self, budget_s: float) -> None:
        """Export and write the remaining rows; later calls do nothing.

        Args:
            budget_s: Time limit in seconds, for each of the two.
        """
        spill, self._spill = self._spill, None
        export, self._export = self._export, None
        self.metrics.close()
        if export is not None:
            # The export comes first, because it reads segments that the spill then moves to disk.
            export.close(budget_s)
        if spill is not None:
            spill.close(budget_s)
