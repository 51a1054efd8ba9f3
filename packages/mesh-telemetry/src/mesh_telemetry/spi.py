"""For packages that add tables, by an entry point of the group `mesh_telemetry.sources`.

The entry point is a mapping from names of tables to `SourceTable`. Rows are told as they happen by
`mesh_core.spi.record_row`, or made when they are asked for. `mesh_telemetry.testing` has the tests
that it must pass.
"""

from mesh_telemetry._sources import SourceTable as SourceTable
