"""Recording: keep the messages of actors, to replay a failure on another machine."""

from mesh_core._program.recording import record as record
from mesh_core._program.recording import save_case as save_case
from mesh_core._recording.errors import NotRecorded as NotRecorded
from mesh_core._recording.errors import ValueRedacted as ValueRedacted
