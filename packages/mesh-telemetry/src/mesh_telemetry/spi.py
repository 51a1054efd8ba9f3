"""Interface for packages that add tables through an entry point of `mesh_telemetry.sources`.

The entry point is a mapping from table names to `SourceTable`. Rows are recorded as they happen
with `mesh_core.spi.record_row`, or computed when they are queried. `mesh_telemetry.testing` has the
conformance tests for such a package.
"""

from mesh_telemetry._sources import SourceTable as SourceTable
