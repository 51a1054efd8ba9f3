"""Ask a running mesh questions in SQL.

`Telemetry` records a program and the processes that it spawns, each on its own host, and answers
questions over the rows of all of them.
"""

from mesh_telemetry._coverage import Answer as Answer
from mesh_telemetry._coverage import Coverage as Coverage
from mesh_telemetry._coverage import HostFailure as HostFailure
from mesh_telemetry._coverage import Shipped as Shipped
from mesh_telemetry._debugging import DebugConsole as DebugConsole
from mesh_telemetry._errors import CoverageError as CoverageError
from mesh_telemetry._errors import DebugError as DebugError
from mesh_telemetry._errors import QueryError as QueryError
from mesh_telemetry._errors import StorageError as StorageError
from mesh_telemetry._errors import TelemetryError as TelemetryError
from mesh_telemetry._options import TelemetryConfig as TelemetryConfig
from mesh_telemetry._otlp_options import OtlpConfig as OtlpConfig
from mesh_telemetry._past import Past as Past
from mesh_telemetry._stored_runs import Run as Run
from mesh_telemetry._telemetry import Telemetry as Telemetry
