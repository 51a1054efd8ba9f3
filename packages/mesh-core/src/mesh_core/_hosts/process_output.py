"""The output of the processes of a host, which is recorded and shown in the program."""

from __future__ import annotations

import sys

from mesh_core._configuration.config import effective
from mesh_core._logging.forwarder import RemoteLog
from mesh_core._logging.printer import LogPrinter
from mesh_core._observability.events import recorder
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._hosts.slot import Slot
    from mesh_core._logging.line import LogLine
    from mesh_core._runtime.runtime import Runtime

__all__ = ["ProcessOutput"]

_FLUSH_S = 2.0


class ProcessOutput:
    """Records the lines that processes write, and shows them in the program.

    Args:
        runtime: The runtime of the agent of the host.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._printer = LogPrinter(effective().log_group_window_s)
        # Forwards the lines if the program runs on another host.
        self._remote_log = RemoteLog(lambda lines: runtime.ask_agent(0, "log_lines", lines))

    def put(self, line: LogLine, slot: Slot | None) -> None:
        """Record a line, and show it or forward it to the program.

        Args:
            line: The line.
            slot: The slot of the process, if it is still known.
        """
        if recorder.is_on:
            recorder.record(
                "log_line",
                peer=proc_id(self._runtime.identity.host, line.slot),
                text=line.text,
                actor=0 if slot is None else slot.request.table.uid,
                rank=0 if slot is None else slot.rank,
                subject=line,
            )
        if not effective().log_forward:
            return
        if self._runtime.is_root:
            self.show(line)
        else:
            self._remote_log.put(line)

    def show(self, line: LogLine) -> None:
        """Print a line of a process of any host; called in the program."""
        if effective().log_prefix:
            self._printer(line)
        else:
            stream = sys.stderr if line.stream == "stderr" else sys.stdout
            print(line.text, file=stream, flush=True)

    def flush(self) -> None:
        """Wait until the program has shown all lines so far."""
        self._remote_log.flush(_FLUSH_S)
        self._printer.flush()
