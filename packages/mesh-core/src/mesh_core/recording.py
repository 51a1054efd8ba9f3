"""Recording: keep what actors receive, so that a failure can be replayed on another machine."""

from __future__ import annotations

from mesh_core._recording.request import record as record
from mesh_core._recording.request import save_case as save_case
