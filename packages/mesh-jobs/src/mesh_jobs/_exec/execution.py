"""The execution of a command on every rank of a mesh, until the last rank has exited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, TypeVar

from mesh_core import Channel, ValueMesh, configured, returns_future
from mesh_jobs._exec.rank_runner import OUTPUT_WINDOW, RankRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mesh_core import Future, HostMesh, Port, PortReceiver, ProcMesh
    from mesh_jobs._exec.rank_output import RankOutput
    from mesh_jobs._exec.rank_runner import ExecRequest, RankEvent

__all__ = ["Execution"]

T = TypeVar("T")


class Execution:
    """Execution of a command on new processes of a host mesh, which are stopped when it is over."""

    def __init__(
        self, host_mesh: HostMesh, *, per_host: Mapping[str, int] | None = None, name: str
    ) -> None:
        with configured(mailbox_len_max=OUTPUT_WINDOW):
            self._procs = host_mesh.spawn_procs(per_host, name=name)
            self._port, self._events = _open_channel()
        self._runners = self._procs.spawn("runners", RankRunner)
        self.extent = self._procs.extent
        self.statuses: dict[int, int] = {}
        """The exit statuses so far, in the order in which ranks exited."""
        self.host_names: list[str] = []
        """The name of each rank's host, once the command has started."""
        self.is_cancelled = False
        """Whether the program has cancelled it; later nonzero statuses are not failures."""
        self.is_signalled = False
        """Whether the program has sent a signal to the ranks."""
        self._start_lock = threading.Lock()
        self._is_started = False
        # The requests from before the start of the command.
        self._early_signals: list[int] = []
        self._is_ending = False

    def run(
        self,
        request: ExecRequest | Callable[[], ExecRequest],
        output: RankOutput,
        *,
        on_exit: Callable[[int, int], object] | None = None,
        on_error: Callable[[int, bytes], object] | None = None,
    ) -> ValueMesh[int]:
        """Run the command on all ranks, and stop the processes after its end.

        Takes, returns and raises the same as `run_round`.
        """
        try:
            return self.run_round(request, output, on_exit=on_exit, on_error=on_error)
        finally:
            self.close()

    def run_round(
        self,
        request: ExecRequest | Callable[[], ExecRequest],
        output: RankOutput,
        *,
        on_exit: Callable[[int, int], object] | None = None,
        on_error: Callable[[int, bytes], object] | None = None,
    ) -> ValueMesh[int]:
        """Run the command on all ranks, wait for its end, and return the exit statuses.

        It can be called again: the processes are reused, and all processes that the previous
        command started have exited.

        Args:
            request: The request, or a function that creates it once the processes have started.
            output: The output of the ranks.
            on_exit: A function that is called with the rank and the status of each rank that exits.
            on_error: A function that is called before that, with the content of the rank's error
                file.

        Raises:
            MeshError: A rank was lost.
        """
        self.statuses = {}
        made = request() if callable(request) else request
        self.host_names = list(self._runners.start.call(made, self._port).get().values())
        self._set_started()
        while len(self.statuses) < len(self._procs):
            rank, about, said = self._events.recv().get()
            if isinstance(said, bytes) and about == "error":
                if on_error is not None:
                    on_error(rank, said)
                continue
            if isinstance(said, bytes):
                output.take(rank, about, said)
                continue
            output.ended(rank, said)
            self.statuses[rank] = said
            if on_exit is not None:
                on_exit(rank, said)
        with self._start_lock:
            self._is_started = self._is_ending = False
        statuses = [self.statuses[rank] for rank in range(len(self._procs))]
        return ValueMesh(self.extent, statuses)

    def close(self) -> None:
        """Stop the processes, which terminates the command on all ranks that still run."""
        self._procs.stop().exception()

    def first_of_hosts(self, per_host: int) -> ProcMesh:
        """Return the first process of each host."""
        return self._procs.flatten("rank").slice(rank=slice(0, None, per_host))

    def signal(self, number: int) -> None:
        """Send a signal to the command on all ranks that still run, or that are about to start."""
        self.is_signalled = True
        with self._start_lock:
            if not self._is_started:
                self._early_signals.append(number)
                return
        for rank in self._running():
            self._runners[rank].signal.broadcast(number)

    def end(self) -> None:
        """Terminate the command on all ranks that still run, with SIGKILL after a grace period."""
        with self._start_lock:
            self._is_ending = True
            if not self._is_started:
                return
        for rank in self._running():
            self._runners[rank].end.broadcast()

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Run a function in a thread; cancelling the future terminates the command."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def settle() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        threading.Thread(target=settle, name="mesh-exec", daemon=True).start()
        return self._outcome_of(outcome)

    @returns_future
    async def _outcome_of(self, outcome: concurrent.futures.Future[T]) -> T:
        try:
            return await asyncio.shield(asyncio.wrap_future(outcome))
        except asyncio.CancelledError:
            self.is_cancelled = True
            self.end()
            raise

    def _set_started(self) -> None:
        """Record that the command runs, and send it the requests from before its start."""
        with self._start_lock:
            self._is_started = True
            signals, self._early_signals = self._early_signals, []
            is_ending = self._is_ending
        for number in signals:
            self.signal(number)
        if is_ending:
            self.end()

    def _running(self) -> list[int]:
        return [rank for rank in range(len(self._procs)) if rank not in self.statuses]


def _open_channel() -> tuple[Port[RankEvent], PortReceiver[RankEvent]]:
    return Channel.open()
