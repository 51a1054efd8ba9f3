"""Service provider interface for libraries that extend Mesh; programs need only `mesh_core`.

- Events and telemetry: events of a process (`EventStream`), the message log (`MessageLog`), metrics
  (`Meter`), rows for tables (`record_row`) and captured output (`LogLine`).
- This process as a member of its job (`current_process`): its location, whether the job has
  credentials, a snapshot of the existing objects, the messages that its actors serve and the
  replies that they wait for.
- Extension points: spawn callbacks (`register_proc_mesh_spawn_callback`), futures of work other
  than calls (`CompletionFuture`), the algebra of named dimensions (`MeshTrait`), tensor support
  (`TensorEngine`), wrappers around endpoints (`intercept_endpoints`), and stop requests by another
  component than the owner (`stop_owned`).
- Notebooks: rows as an HTML table (`html_table`).
- Services: signal handling (`on_signals`), connection limits for listeners (`ConnectionLimiter`)
  and tables of the configuration file (`read_config_table`).
"""

from mesh_core._actors.active_calls import ActiveCall as ActiveCall
from mesh_core._actors.active_calls import Activity as Activity
from mesh_core._actors.interceptors import intercept_endpoints as intercept_endpoints
from mesh_core._calls.completion import Completion as Completion
from mesh_core._calls.completion import CompletionFuture as CompletionFuture
from mesh_core._configuration.config import read_config_table as read_config_table
from mesh_core._hosts.current_process import ProcessLocation as ProcessLocation
from mesh_core._hosts.current_process import current_process as current_process
from mesh_core._logging.line import LogLine as LogLine
from mesh_core._meshes.spawn_callbacks import (
    register_proc_mesh_spawn_callback as register_proc_mesh_spawn_callback,
)
from mesh_core._observability.events import Event as Event
from mesh_core._observability.events import EventStream as EventStream
from mesh_core._observability.message_log import MessageLog as MessageLog
from mesh_core._observability.trace_context import SpanIdentity as SpanIdentity
from mesh_core._observability.tracing import Meter as Meter
from mesh_core._observability.tracing import is_recorded as is_recorded
from mesh_core._observability.tracing import record_row as record_row
from mesh_core._security.connection_limiter import Admission as Admission
from mesh_core._security.connection_limiter import ConnectionLimiter as ConnectionLimiter
from mesh_core._shapes.html_table import html_table as html_table
from mesh_core._shapes.shape import MeshTrait as MeshTrait
from mesh_core._supervision.stop_request import stop_owned as stop_owned
from mesh_core._system.signals import on_signals as on_signals
from mesh_core._tensor_engine import RequiresTensorEngine as RequiresTensorEngine
from mesh_core._tensor_engine import TensorEngine as TensorEngine
from mesh_core._tensor_engine import TensorEngineCall as TensorEngineCall
