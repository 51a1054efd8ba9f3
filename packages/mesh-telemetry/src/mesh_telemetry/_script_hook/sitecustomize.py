"""Python imports this module at the start of a script whose collectives are recorded.

The folder is in `PYTHONPATH` of such a script only; see `mesh_telemetry._recording.scripts`.
Nothing of Mesh is imported unless the script imports `torch.distributed`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent
_WHEN_IMPORTED = _FOLDER.parent / "_collectives" / "when_imported.py"
_MODULE = "torch.distributed.distributed_c10d"


def _leave_path() -> None:
    """Remove this folder from the path, for this process and its children."""
    here = str(_FOLDER)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.pathsep.join(entry for entry in entries if entry != here)
    if rest:
        os.environ["PYTHONPATH"] = rest
    else:
        os.environ.pop("PYTHONPATH", None)


def _import_hidden() -> None:
    """Import the module of the same name that this one hides, if there is one."""
    spec = importlib.util.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)


def _record(module: ModuleType) -> None:
    from mesh_telemetry._recording.scripts import record_script  # noqa: PLC0415

    record_script(module)


def _install() -> None:
    spec = importlib.util.spec_from_file_location("_mesh_when_imported", _WHEN_IMPORTED)
    if spec is not None and spec.loader is not None:
        # Loaded from its file, because its package would import Mesh.
        helper = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(helper)
        helper.when_imported(_MODULE, _record)


_leave_path()
_install()
sys.modules.pop("sitecustomize", None)
_import_hidden()
