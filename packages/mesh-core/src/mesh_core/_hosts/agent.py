"""The agent of a host, which manages its processes for the job: slots, owners, deaths."""

from __future__ import annotations

import pickle
import threading
import time

from mesh_core._configuration.config import effective
from mesh_core._core import Targets
from mesh_core._hosts.exit_details import describe_exit, exit_fields
from mesh_core._hosts.hand_over import HandOver
from mesh_core._hosts.process_output import ProcessOutput
from mesh_core._hosts.process_specs import process_spec, resolved_binds
from mesh_core._hosts.slot import Slot
from mesh_core._hosts.unresponsive import describe_silence
from mesh_core._logging.python_logging import warn
from mesh_core._observability.events import recorder
from mesh_core._processes.job_dir import JobDir
from mesh_core._processes.local_host import LocalHost
from mesh_core._runtime.job_credentials import mark_credentials
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import PROC_DIED, RAISED, STOPPED, proc_id
from mesh_core._supervision.failure import FailureDetail
from mesh_core._system import kernel as _kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from mesh_core._core import Message
    from mesh_core._logging.line import LogLine
    from mesh_core._meshes.start_request import StartRequest
    from mesh_core._processes.exit_report import ExitReport
    from mesh_core._processes.process_spec import ProcSpec
    from mesh_core._processes.template_cache import TemplateCacheClient
    from mesh_core._runtime.runtime import Runtime

__all__ = ["HostAgent"]

# The process of the program.
_ROOT = 0
# The time beyond the grace periods that a process grants its own parts.
_END_S = 2.0
_FLUSH_S = 2.0
# The number of reports of silence after which a connected process is killed. A single report may
# concern a process that has just started.
_SILENT_MAX = 2
# The interval at which an agent checks whether a host has received everything, in seconds.
_LOOK_S = 0.0005


class HostAgent:
    """Manages the processes of this host."""

    def __init__(
        self,
        runtime: Runtime,
        first_slot: int,
        *,
        template_cache: TemplateCacheClient | None = None,
        on_start: Callable[[int, str], None] | None = None,
        on_resume: Callable[[], None] = lambda: None,
        local_host: Callable[..., LocalHost] = LocalHost,
        job_dir: Callable[[Path], JobDir] = JobDir,
    ) -> None:
        self._runtime = runtime
        self._slots: dict[int, Slot] = {}
        self._next_slot = first_slot
        # Modules that were requested for all processes.
        self._preloaded: tuple[str, ...] = ()
        # The first incarnation of every slot here. It is higher than any incarnation on a previous
        # machine of this host.
        self._first_life = runtime.identity.incarnation
        self._is_closing = False
        self._tell_start = on_start
        self._on_resume = on_resume
        self._changed = threading.Condition()
        # The number of stops in progress whose requesters have not got a reply.
        self._stops = 0
        self.hand_over: HandOver = HandOver(runtime, self)
        self._directory = job_dir(runtime.identity.directory)
        self.output: ProcessOutput = ProcessOutput(runtime)
        config = effective()
        self._host = local_host(
            runtime.identity.directory,
            on_exit=self._on_exit,
            on_log=self._on_log,
            on_start=None if on_start is None else self._on_start,
            on_look=self._look,
            on_memory_high=self._on_memory_high,
            tail_lines=config.log_tail_lines,
            log_dir=config.log_dir,
            template_cache=template_cache,
        )

    @property
    def next_slot(self) -> int:
        """The first slot that was never used."""
        return self._next_slot

    def reserve(self, count: int) -> int:
        """Reserve consecutive slots."""
        with self._changed:
            first = self._next_slot
            self._next_slot += count
        return first

    def _open_directory(self) -> None:
        self._runtime.engine.listen()
        mark_credentials(self._runtime)

    def start(self, request: StartRequest) -> None:
        """Start the processes of a mesh that run on this host."""
        self._directory.make(self._open_directory)
        me = self._runtime.identity.host
        ranks = [
            rank
            for rank in range(len(request.table.region))
            if request.table.proc(rank) >> 32 == me
        ]
        specs = []
        binds = resolved_binds(request)
        self._watch_owner(request)
        with self._changed:
            for rank in ranks:
                slot = Slot(request, rank, self._first_life)
                number = request.table.proc(rank) & 0xFFFF_FFFF
                self._slots[number] = slot
                specs.append(process_spec(self._runtime, number, slot, binds))
        for spec in specs:
            self._runtime.engine.proc_started(proc_id(me, spec.slot), spec.incarnation)
            self._note_start(spec.slot)
        self._spawn(specs, request)

    def _spawn(self, specs: Sequence[ProcSpec], request: StartRequest) -> None:
        """Start processes in their slots; if that fails, no process is expected there."""
        try:
            self._host.spawn(specs, self._modules_for(request))
        except BaseException:
            with self._changed:
                for spec in specs:
                    self._slots[spec.slot].is_alive = False
                self._changed.notify_all()
            raise

    def preload(self, modules: Sequence[str]) -> None:
        """Start to import modules in the template, and return before they are imported."""
        self._directory.make(self._open_directory)
        self._preloaded = tuple(dict.fromkeys((*self._preloaded, *modules)))
        self._host.spawn([], self._preloaded)

    def warm_up(self, modules: Sequence[str], limit_s: float) -> None:
        """Import modules in the template, and wait until processes can be forked from it."""
        self.preload(modules)
        self._host.wait_until_warm(limit_s)

    def _modules_for(self, request: StartRequest) -> tuple[str, ...]:
        """Return the modules that processes need, including the modules of earlier requests."""
        return tuple(dict.fromkeys((*self._preloaded, *request.preload)))

    def living(self) -> list[int]:
        """Return the slots whose processes are alive."""
        with self._changed:
            return [number for number, slot in self._slots.items() if slot.is_alive]

    def wait_until_empty(self, limit_s: float) -> bool:
        """Wait until no process is alive and all stops are answered; return whether this happened.

        Args:
            limit_s: The maximum time to wait, in seconds.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self._stops == 0 and not _any_alive(self._slots.values()), limit_s
            )

    def replace(self, number: int, request: StartRequest | None) -> int | None:
        """Start a process in a slot whose process has died; return None if it is alive.

        Args:
            number: The slot.
            request: The request that started its mesh, for a process that died with a previous
                machine of this host.

        Raises:
            RuntimeError: The slot never had a process.
        """
        if request is not None:
            self._watch_owner(request)
        return self._start_again(number, request)

    def _start_again(self, number: int, request: StartRequest | None) -> int | None:
        """Start a process as `replace` does, without a request to the host of the owner."""
        self._directory.make(self._open_directory)
        with self._changed:
            slot = self._slots.get(number)
            if slot is None:
                slot = self._lost_slot(number, request)
            if slot.is_alive:
                return None
            slot.begin_incarnation()
            spec = process_spec(self._runtime, number, slot, resolved_binds(slot.request))
        proc = proc_id(self._runtime.identity.host, number)
        self._runtime.engine.proc_started(proc, slot.incarnation)
        self._note_start(number)
        self._spawn([spec], slot.request)
        return slot.incarnation

    def _watch_owner(self, request: StartRequest) -> None:
        """Request the report of the death of the owner, if it is on another host.

        This host has no connection to it that breaks when it dies.
        """
        owner = request.table.owner[0]
        if owner >> 32 != self._runtime.identity.host:
            self._runtime.engine.watch(owner)

    def _lost_slot(self, number: int, request: StartRequest | None) -> Slot:
        """Restore the slot of a process that died with the previous machine of this host."""
        proc = proc_id(self._runtime.identity.host, number)
        rank = None if request is None else request.table.rank_of(proc)
        if request is None or rank is None:
            raise RuntimeError(f"no process was ever started in slot {number}")
        slot = self._slots[number] = Slot(request, rank, self._first_life)
        slot.is_alive = False
        return slot

    def stop(
        self, message: Message | None, numbers: list[int], grace_s: float, is_drained: bool
    ) -> None:
        """Stop processes in an orderly way, and reply when they are gone."""
        with self._changed:
            self._stops += 1
            known = ((number, self._slots.get(number)) for number in numbers)
            slots = {number: slot for number, slot in known if slot is not None and slot.is_alive}
            for slot in slots.values():
                slot.is_stopping = True
        host = self._runtime.identity.host
        replies: dict[int, int] = {}
        for number in slots:
            target = Targets([(proc_id(host, number), 0)])
            replies[number] = self._runtime.call_agents(target, "end", grace_s, is_drained)
        threading.Thread(
            target=self._await_ends,
            args=(message, slots, replies, grace_s),
            name="mesh-stop",
            daemon=True,
        ).start()

    def _await_ends(
        self,
        message: Message | None,
        slots: Mapping[int, Slot],
        replies: Mapping[int, int],
        grace_s: float,
    ) -> None:
        code, body = 0, pickle.dumps(None, 5)
        try:
            self._end_all(slots, replies, grace_s)
        except Exception as error:
            code, body = RAISED, encode_exception(error)
        if message is not None and message.from_port:
            self._runtime.engine.reply(message, code, body)
        with self._changed:
            self._stops -= 1
            self._changed.notify_all()

    def _end_all(
        self, slots: Mapping[int, Slot], replies: Mapping[int, int], grace_s: float
    ) -> None:
        """Kill processes that do not reply in time, or that do not exit within their own limits.

        Another stop of the same processes may be in progress and remove their slots first.
        """
        until = time.monotonic() + grace_s
        limit_s = grace_s + effective().cleanup_timeout_s + _END_S
        wait = self._runtime.engine.wait
        for number, reply in replies.items():
            if wait(reply, max(until - time.monotonic(), 0.0)) is None:
                self._runtime.engine.forget(reply)
                self._host.kill(number)
        with self._changed:
            self._changed.wait_for(lambda: not _any_alive(slots.values()), limit_s)
        for number, slot in slots.items():
            if slot.is_alive:
                self._host.kill(number)
        with self._changed:
            self._changed.wait_for(lambda: not _any_alive(slots.values()))
            for number, slot in slots.items():
                if self._slots.get(number) is slot:
                    del self._slots[number]
        self.flush_output()

    def flush_output(self) -> None:
        """Wait until the program has shown the output of the processes."""
        self._host.flush(_FLUSH_S)
        self.output.flush()

    def hold(self, host: int) -> None:
        """Hold messages for a host that is about to move; wait until it has all earlier ones."""
        engine = self._runtime.engine
        engine.hold_host(host)
        while not engine.has_received_all(host) and not engine.is_host_dead(host):
            time.sleep(_LOOK_S)

    def start_requests(self) -> dict[int, StartRequest]:
        """Return the requests that started the living processes, by slot."""
        return {number: self._slots[number].request for number in self.living()}

    def start_early(self, requests: Mapping[int, StartRequest]) -> None:
        """Start the processes that will replace the processes of a host that is about to move here.

        This machine cannot communicate with other hosts yet. A process with a bootstrap is
        therefore not started, because the bootstrap may call actors.

        Args:
            requests: Their start requests by slot.
        """
        for number, request in requests.items():
            if not request.bootstrap:
                self._start_again(number, request)

    def start_moved(self, requests: Mapping[int, StartRequest]) -> None:
        """Start the processes that the previous machine of this host had, unless they are started.

        Processes that were started early and that the previous machine has stopped since are
        killed.
        """
        self._on_resume()
        with self._changed:
            stopped = [
                number
                for number, slot in self._slots.items()
                if slot.is_alive and number not in requests
            ]
            for number in stopped:
                self._slots[number].is_stopping = True
        for number in stopped:
            self._host.kill(number)
        for number, request in requests.items():
            self.replace(number, request)

    def request_of(self, number: int) -> StartRequest:
        """Return the request that started the process in a slot."""
        with self._changed:
            return self._slots[number].request

    def expect_end(self) -> None:
        """Record that every process here ends soon, because it continues on another machine."""
        with self._changed:
            for slot in self._slots.values():
                slot.is_stopping = True

    def is_stopping_any(self) -> bool:
        """Return whether a request to stop processes has no reply yet."""
        with self._changed:
            return self._stops > 0

    def kill(self, number: int, why: str) -> None:
        """Kill a process for a reason that its exit report states."""
        with self._changed:
            slot = self._slots.get(number)
            if slot is None or not slot.is_alive:
                return
            slot.why_ended = why
        self._host.kill(number)

    def signal(self, slot: int, number: int) -> None:
        """Send a signal to a process, if it is alive, before this returns."""
        self._host.send_signal(slot, number)

    def end_silent(self, number: int, why: str) -> None:
        """Kill a process for which waits have repeatedly timed out since it was connected."""
        proc = proc_id(self._runtime.identity.host, number)
        with self._changed:
            slot = self._slots.get(number)
            if slot is None or not slot.is_alive or not self._runtime.engine.is_up(proc):
                return
            slot.silent_count += 1
            if slot.silent_count < _SILENT_MAX:
                return
            slot.why_ended = why
        self._host.kill(number)

    def _look(self, passed_s: float) -> None:
        """Kill live processes that have had no connection to this one for too long."""
        with self._changed:
            slots = [pair for pair in self._slots.items() if pair[1].is_alive]
        engine = self._runtime.engine
        for number, slot in slots:
            proc = proc_id(self._runtime.identity.host, number)
            if engine.is_up(proc):
                slot.unreachable_s = 0.0
            elif engine.was_up(proc):
                slot.unreachable_s += passed_s
                self._check_reachable(number, slot)

    def _check_reachable(self, number: int, slot: Slot) -> None:
        limit_s = slot.unresponsive_timeout_s
        pid = self._host.pid(number)
        # The supervisor handles processes stopped by a signal; those stopped by a debugger are left
        # alone.
        if slot.unreachable_s < limit_s or pid is None or _kernel.state_of(pid) in ("T", "t"):
            return
        if slot.why_ended is None:
            slot.why_ended = f"it closed its connections, and was killed after {limit_s:g} s"
            self._host.kill(number)

    def condition(self, number: int) -> tuple[str, str]:
        """Describe the process in a slot, and the reason why it does not reply, if known."""
        with self._changed:
            slots = dict(self._slots)
        return describe_silence(self._runtime.identity.host_name, self._host, slots, number)

    def owner_died(self, proc: int) -> None:
        """Stop the processes that an actor of a dead process owned; they clean up."""
        # Processes that the program owned may wait for its successor.
        kept = (0, 0) if self._runtime.identity.outlives_root else None
        with self._changed:
            numbers = [
                number
                for number, slot in self._slots.items()
                if slot.is_alive and not slot.is_stopping
                if slot.request.table.owner[0] == proc and slot.request.table.owner != kept
            ]
        if numbers:
            self.stop(None, numbers, effective().stop_grace_s, False)

    def close(self, grace_s: float) -> None:
        """Stop every process and wait for its exit."""
        self._is_closing = True
        with self._changed:
            for slot in self._slots.values():
                slot.is_stopping = True
        self._host.close(grace_s)
        self._directory.close()
        self.output.flush()

    def pid(self, number: int) -> int | None:
        """Return the process id in a slot."""
        return self._host.pid(number)

    def _note_start(self, number: int) -> None:
        if recorder.is_on:
            slot = self._slots[number]
            recorder.record(
                "proc_started",
                peer=proc_id(self._runtime.identity.host, number),
                rank=slot.rank,
                actor=slot.request.table.uid,
                text=slot.request.table.name,
                attributes={"incarnation": slot.incarnation},
            )

    def _on_log(self, line: LogLine) -> None:
        self.output.put(line, self._slots.get(line.slot))

    def _on_start(self, number: int, _incarnation: int, pid: int) -> None:
        with self._changed:
            slot = self._slots[number]
        if self._tell_start is not None:
            self._tell_start(pid, slot.log_name)

    def _on_memory_high(self, number: int, text: str) -> None:
        """Let the program log that a process is close to its memory limit."""
        with self._changed:
            slot = self._slots.get(number)
        pid = self._host.pid(number)
        if slot is None or pid is None:
            return  # It has exited, and its exit report is on the way.
        name = slot.log_name
        host_name = self._runtime.identity.host_name
        message = f"{name} (rank {slot.rank}, pid {pid} on {host_name}) may be killed soon: {text}"
        if self._runtime.is_root:
            warn(message)
        else:
            self._runtime.tell_agent(_ROOT, "warn", message)

    def _on_exit(self, report: ExitReport) -> None:
        with self._changed:
            slot = self._slots[report.slot]
            slot.is_alive = False
            is_expected = slot.is_stopping
            self._changed.notify_all()
        table, rank = slot.request.table, slot.rank
        proc = proc_id(self._runtime.identity.host, report.slot)
        fields = exit_fields(self._runtime.identity, slot, report)
        if recorder.is_on:
            recorder.record(
                "proc_died",
                peer=proc,
                rank=rank,
                actor=table.uid,
                text=table.name,
                code=int(not is_expected),
                attributes=fields,
            )
        if is_expected:
            detail = FailureDetail(0, STOPPED, {**fields, "log_tail": (), "signal": None})
            detail.fields.pop("exit_code")
            detail.fields.pop("signal")
        else:
            failure_id = self._runtime.engine.new_port()
            detail = FailureDetail(failure_id, PROC_DIED, fields, None, table.owner[0])
            if effective().record is not None:
                # This host still has the log of its actors.
                self._runtime.tell_agent(
                    _ROOT, "case_wanted", proc, report.incarnation, 0, 0, describe_exit(report)
                )
        self._runtime.engine.proc_died(proc, report.incarnation, detail.encode())
        if not self._is_closing:
            # A separate thread, because this one has to report other exits.
            threading.Thread(target=self.owner_died, args=(proc,), daemon=True).start()


def _any_alive(slots: Iterable[Slot]) -> bool:
    return any(slot.is_alive for slot in slots)
