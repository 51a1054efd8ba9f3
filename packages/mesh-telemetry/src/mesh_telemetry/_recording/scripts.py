"""Recording of the collectives of scripts, which are started by a recorded process.

A script for torchrun, as `mesh spmd` runs it, does not belong to a mesh. It writes its collectives
to a separate folder of the host, and replies to requests for its stacks.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from contextlib import suppress
from pathlib import Path

from mesh_core.spi import current_process
from mesh_telemetry._collectives.process_groups import ProcessGroups
from mesh_telemetry._events.folders import Lock
from mesh_telemetry._events.proc_folder import write_identity
from mesh_telemetry._events.process_socket import STACKS, STATE, ProcessSocket, stacks
from mesh_telemetry._recording.recorder import active_recorder
from mesh_telemetry._steps.step_recorder import StepRecorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

__all__ = ["record_script", "script_environment"]

_VARIABLE = "MESH_TELEMETRY_SCRIPT"
_HOOK = Path(__file__).parent.parent / "_script_hook"
_PERIOD_S = 0.1


def script_environment(rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a script records its collectives.

    mesh-jobs calls this through the entry point group `mesh_jobs.script_environment`.

    Args:
        rank: The rank of the script.
        environment: The variables that are added to the environment of this process.

    Returns:
        Variables to add; none if this process is not recorded.
    """
    recorder = active_recorder()
    if recorder is None:
        return {}
    about = current_process.location()._asdict()
    about |= {"rank": rank, "host_folder": str(recorder.folder.parent)}
    path = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    entries = [str(_HOOK), *filter(None, path.split(os.pathsep))]
    return {_VARIABLE: json.dumps(about), "PYTHONPATH": os.pathsep.join(entries)}


def record_script(module: ModuleType) -> None:
    """Record this script if its starter has requested it.

    Args:
        module: `torch.distributed.distributed_c10d`, whose import ends after this call.
    """
    described = os.environ.pop(_VARIABLE, None)
    if described is not None:
        with suppress(OSError, ValueError, KeyError):
            _ScriptRecorder(json.loads(described), module)


class _ScriptRecorder:
    """Records the collectives of this process in a thread.

    Args:
        about: The identity of the process that has started the script, with the rank of the script
            and the folder of the host.
        module: `torch.distributed.distributed_c10d`.
    """

    def __init__(self, about: dict[str, Any], module: ModuleType) -> None:
        host_folder = Path(about.pop("host_folder"))
        self._host_lock = Lock(host_folder, is_shared=True)
        name = f"script.{about['slot']}.{os.getpid()}.{os.urandom(4).hex()}"
        self._folder = host_folder / name
        self._folder.mkdir(mode=0o700)
        self._lock = Lock.of_new(self._folder)
        about["mesh_name"] = os.path.basename(sys.argv[0]) or "script"
        write_identity(self._folder, about)
        self._pid = os.getpid()
        self._socket = ProcessSocket(self._folder, {STACKS: stacks, STATE: _state}, {})
        self._groups = ProcessGroups(self._folder, module)
        self._steps = StepRecorder(self._folder, self._groups.busy_ns)
        os.register_at_fork(after_in_child=self._detach)
        threading.Thread(target=self._run, name="mesh-telemetry", daemon=True).start()

    def _run(self) -> None:
        while self._pid == os.getpid():
            ready, _, _ = select.select([self._socket.fileno()], [], [], _PERIOD_S)
            if ready:
                self._socket.serve()
            self._groups.poll()

    def _detach(self) -> None:
        for each in (self._lock, self._host_lock, self._socket):
            each.close()


def _state() -> tuple[Any, Any, Any]:
    """Return the stacks; a script has no actors, and no calls that wait."""
    return stacks(), (), None
