"""Service provider interface for libraries that extend Mesh; programs need only `mesh_core`.

- Events and telemetry: events of a process (`subscribe`), the message log (`log_messages`), metrics
  (`Meter`), rows for tables (`record_row`) and captured output (`LogLine`).
- State of a process: its location in the job (`process_location`), whether the job has credentials
  (`has_credentials`), a snapshot of the existing objects (`snapshot`), the messages that it serves
  (`activity`) and the replies that it waits for (`pending_calls`).
- Extension points: spawn callbacks (`register_proc_mesh_spawn_callback`), futures of work other
  than calls (`future_of`), the algebra of named dimensions (`MeshTrait`), tensor support
  (`TensorEngine`), wrappers around endpoints (`intercept_endpoints`), and stop requests by another
  component than the owner (`stop_owned`).
- Services: signal handling (`on_signals`), connection limits for listeners (`ConnectionLimiter`)
  and tables of the configuration file (`read_config_table`).
"""

from mesh_core._actors.active_calls import ActiveCall as ActiveCall
from mesh_core._actors.active_calls import Activity as Activity
from mesh_core._actors.active_calls import activity as activity
from mesh_core._actors.interceptors import EndpointInterceptor as EndpointInterceptor
from mesh_core._actors.interceptors import intercept_endpoints as intercept_endpoints
from mesh_core._actors.interceptors import is_actor_ending as is_actor_ending
from mesh_core._actors.local_actor import is_actor_coming as is_actor_coming
from mesh_core._actors.local_actor import local_actor as local_actor
from mesh_core._actors.pending_calls import PendingCall as PendingCall
from mesh_core._actors.pending_calls import pending_calls as pending_calls
from mesh_core._calls.completion import Completion as Completion
from mesh_core._calls.completion import done_future as done_future
from mesh_core._calls.completion import failed_future as failed_future
from mesh_core._calls.completion import future_of as future_of
from mesh_core._configuration.config import read_config_table as read_config_table
from mesh_core._hosts.process_locations import ProcessLocation as ProcessLocation
from mesh_core._hosts.process_locations import draining_hosts as draining_hosts
from mesh_core._hosts.process_locations import host_agents as host_agents
from mesh_core._hosts.process_locations import host_numbers as host_numbers
from mesh_core._hosts.process_locations import is_stopped as is_stopped
from mesh_core._hosts.process_locations import process_location as process_location
from mesh_core._logging.line import LogLine as LogLine
from mesh_core._meshes.spawn_callbacks import (
    register_proc_mesh_spawn_callback as register_proc_mesh_spawn_callback,
)
from mesh_core._observability.events import EVENT_KINDS as EVENT_KINDS
from mesh_core._observability.events import MESSAGE_KINDS as MESSAGE_KINDS
from mesh_core._observability.events import MESSAGE_RECORD as MESSAGE_RECORD
from mesh_core._observability.events import Event as Event
from mesh_core._observability.events import EventStream as EventStream
from mesh_core._observability.events import subscribe as subscribe
from mesh_core._observability.message_log import LOG_HEADER as LOG_HEADER
from mesh_core._observability.message_log import LogState as LogState
from mesh_core._observability.message_log import MessageLog as MessageLog
from mesh_core._observability.message_log import log_messages as log_messages
from mesh_core._observability.snapshot import snapshot as snapshot
from mesh_core._observability.trace_context import SpanIdentity as SpanIdentity
from mesh_core._observability.tracing import Counter as Counter
from mesh_core._observability.tracing import Gauge as Gauge
from mesh_core._observability.tracing import Histogram as Histogram
from mesh_core._observability.tracing import Meter as Meter
from mesh_core._observability.tracing import Span as Span
from mesh_core._observability.tracing import UpDownCounter as UpDownCounter
from mesh_core._observability.tracing import is_recorded as is_recorded
from mesh_core._observability.tracing import record_row as record_row
from mesh_core._runtime.job_credentials import has_credentials as has_credentials
from mesh_core._security.connection_limiter import Admission as Admission
from mesh_core._security.connection_limiter import ConnectionLimiter as ConnectionLimiter
from mesh_core._shapes.shape import MeshTrait as MeshTrait
from mesh_core._supervision.stop_request import stop_owned as stop_owned
from mesh_core._system.signals import on_signals as on_signals
from mesh_core._tensor_engine import RequiresTensorEngine as RequiresTensorEngine
from mesh_core._tensor_engine import TensorEngine as TensorEngine
from mesh_core._tensor_engine import TensorEngineCall as TensorEngineCall
