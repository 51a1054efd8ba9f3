"""The template of a standby worker, which imports the modules of a job before it serves the job.

While a worker is reserved, its session runs a process supervisor with a template, as a host of the
job does, and keeps a retained copy of the template. The supervisor of the job is then forked from
the copy, so that the first process does not wait for imports.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from mesh_core._processes.job_dir import JobDir
from mesh_core._processes.local_host import LocalHost
from mesh_core._processes.template_cache import TemplateCache, TemplateCacheClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StandbyTemplate", "extend_path"]


class StandbyTemplate:
    """Imports modules for the job for which a worker is reserved.

    Args:
        path: The module search path of the job's program.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self._path_before = list(sys.path)
        extend_path(path)
        self._modules: Sequence[str] = ()
        self._cache = TemplateCache()
        folder = JobDir.new_path()
        self._folder = JobDir(folder)
        self._folder.make(lambda: None)
        self._host = LocalHost(
            folder,
            on_exit=lambda _: None,
            on_log=lambda _: None,
            template_cache=TemplateCacheClient(self._cache.inlet.fileno(), None),
        )

    def preload(self, modules: Sequence[str]) -> None:
        """Start to import modules, unless they were requested before."""
        if modules != self._modules:
            self._modules = modules
            self._host.spawn([], modules)

    def take(self) -> socket.socket | None:
        """Return the socket of the retained template, if the imports are done, and end the rest."""
        latest = self._cache.latest
        kept = None if latest is None else latest.dup()
        # The job does not have to wait until the processes have exited.
        threading.Thread(target=self._end, name="mesh-standby-template", daemon=True).start()
        return kept

    def close(self) -> None:
        """End all processes, and restore the module search path."""
        self._end()
        sys.path[:] = self._path_before

    def _end(self) -> None:
        self._host.close(0.0)
        self._folder.close()
        self._cache.close()


def extend_path(path: Sequence[str]) -> None:
    """Append the directories of another machine that exist on this one to the search path.

    If both machines see the same files, the program's modules are found.
    """
    sys.path += [one for one in path if one not in sys.path and os.path.exists(one)]
