"""Carries out the decisions of the supervision in this process.

The core (`Supervisor`) holds the state of supervision and makes the decisions. Its state contains
the owner of each mesh, the meshes and ranks that are being stopped or restarted, and the receivers
of each failure. This module reports events to the core, and carries out the effects: it restarts
ranks, calls `__supervise__`, fails owners, stops the meshes of owners that have ended, and finally
notifies the program. It keeps only objects that the core cannot hold: handles of meshes, the
contents of errors, futures and threads.
"""

from __future__ import annotations

import threading
import traceback

from mesh_core._configuration.config import effective
from mesh_core._core import Supervisor, Targets
from mesh_core._errors import ActorFailed, DeadlineExceeded, MeshError, ProcDied
from mesh_core._location import Where
from mesh_core._observability.events import recorder
from mesh_core._serialization.wire import (
    ACTOR_FAILED,
    CALL,
    HOST_DIED,
    INTERNAL,
    PROC_DIED,
    STOPPED,
    proc_of,
)
from mesh_core._supervision.failure import FailureDetail, failure_error
from mesh_core._supervision.policy import MeshFailure
from mesh_core._supervision.supervise_call import SuperviseCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    from mesh_core._calls.future import Future
    from mesh_core._hosts.journal import Journal
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.proc_mesh import ProcMesh
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._supervision.policy import RestartPolicy

    Owned: TypeAlias = ActorMesh[Any] | ProcMesh
    Todo = tuple[str, int, int, str, list[int]]

__all__ = ["Ownership"]

ROOT = 0
_TELL_LIMIT_S = 2.0
_NUDGE = bytes([INTERNAL]) + b"nudge\0"


class _OpenFailure:
    """The contents of a failure that is not settled yet."""

    __slots__ = ("detail", "error", "hit")

    def __init__(self, detail: FailureDetail) -> None:
        self.detail = detail
        #: The meshes and ranks that it affects.
        self.hit: list[tuple[int, int]] = []
        #: The exception that the `__supervise__` of an owner raised.
        self.error: BaseException | None = None


class Ownership:
    """Handles of the meshes that actors of this process own, and the contents of failures."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tree = Supervisor(effective().failure_grace_s, runtime.engine)
        self._lock = threading.RLock()
        self._owned: dict[int, Owned] = {}
        # Only a takeover of a mesh needs the complete policies; the core has its own copies.
        self._policies: dict[int, RestartPolicy] = {}
        self._failures: dict[int, _OpenFailure] = {}
        # Threads that stop the meshes of ending owners.
        self._stop_threads: list[threading.Thread] = []
        # While the program ends, it is notified of each failure immediately.
        self._is_root_ending = False
        # Meshes of the program that stopped after it began to end.
        self._gone: dict[int, Owned] = {}
        # Shorter grace period for remaining meshes, set when the program fails.
        self.stop_grace_max_s: float | None = None
        # Ranks that are being restarted. `_restart_lock` is held while the result of a restart is
        # reported, so that subsequent events are handled later.
        self._restarting: dict[tuple[int, int], Future[Any] | None] = {}
        self._restart_lock = threading.Lock()
        self._ended = threading.Condition(self._lock)

    # Events.

    def owner_started(self, port: int, has_supervise: bool) -> None:
        """Record that an actor, which may own meshes, has started."""
        if recorder.is_on:
            cell = self._runtime.actors[port]
            recorder.record(
                "started",
                actor=port,
                rank=cell.rank,
                text=cell.name,
                attributes={"class_name": cell.class_name},
            )
        self._do(lambda tree: tree.owner_started(port, has_supervise))

    def owner_stopped(self, port: int) -> None:
        """Record that an actor has terminated."""
        self._do(lambda tree: tree.owner_stopped(port))

    def owned(self) -> list[Owned]:
        """Return all meshes that this process owns."""
        with self._lock:
            return list(self._owned.values())

    def spawned(self, owner: int, mesh: Owned, policy: RestartPolicy) -> None:
        """Record that an actor, or the program, has spawned a mesh."""
        if recorder.is_on:
            recorder.record(
                "spawned",
                actor=mesh._uid,
                call=owner,
                size=len(mesh),
                text=mesh._name,
                attributes={
                    "class_name": mesh._class_name,
                    "procs": mesh._table.uid,
                    "extent": dict(mesh.extent),
                },
                subject=mesh,
            )
        with self._lock:
            self._owned[mesh._uid] = mesh
            self._policies[mesh._uid] = policy
        self._do(
            lambda tree: tree.child_spawned(
                owner,
                mesh._uid,
                len(mesh),
                policy.restart,
                policy.scope,
                policy.intensity_max,
                policy.period_s,
            )
        )
        for rank in range(len(mesh)):
            self._runtime.engine.watch(mesh._proc_of(rank))

    def announce(self, owner: int, mesh: Owned, policy: RestartPolicy) -> None:
        """Write a mesh to the journal before it is spawned, so that every standby knows of it."""
        if owner == ROOT and self._runtime.journal is not None:
            self._runtime.journal.note(mesh, policy)

    def note_all(self, journal: Journal) -> None:
        """Write all meshes that the program owns to the journal."""
        for mesh in self.children_of(ROOT):
            policy = self._policies.get(mesh._uid)
            if policy is not None:
                journal.note(mesh, policy)

    def stopping(self, uid: int) -> None:
        """Record that the owner is stopping a mesh."""
        self._do(lambda tree: tree.child_stopping(uid))

    def stopped(self, uid: int) -> None:
        """Record that a mesh has terminated."""
        with self._lock:
            mesh = self._owned.get(uid)
            if mesh is not None and self._is_root_ending and uid in self._tree.children_of(ROOT):
                # The last reports of its ranks may still be unread in the mailbox.
                self._gone[uid] = mesh
        self._do(lambda tree: tree.child_stopped(uid))
        with self._lock:
            self._owned.pop(uid, None)
            self._policies.pop(uid, None)
        self._runtime.forget_requests(uid)

    def actor_failed(self, uid: int, rank: int, body: bytes) -> None:
        """Handle the report of a failed rank of a mesh."""
        detail = FailureDetail.decode(body)
        mesh = self._lost_at_the_end(uid, detail.failure_id)
        if mesh is not None and not self._runtime.engine.has_pending_fault(body):
            error = failure_error(detail, **_where(mesh, rank))
            self._tell_program(MeshFailure(mesh, (mesh,), error, "NoRestart"))
        self._rank_failed([(uid, rank)], detail, body, "crash")

    def _lost_at_the_end(self, uid: int, failure_id: int) -> Owned | None:
        """Return the mesh of a failure that an ending program would otherwise miss."""
        with self._lock:
            if not self._is_root_ending or self._tree.was_received(failure_id):
                return None
            if uid in self._tree.children_of(ROOT):
                return self._owned.get(uid)
            return self._gone.get(uid)

    def actor_left(self, uid: int, rank: int, body: bytes) -> None:
        """Handle a rank that stopped itself, which matters only for the policy `permanent`."""
        if self._tree.restart_of(uid) == "permanent":
            detail = FailureDetail.decode(body)
            detail.failure_id = self._runtime.engine.new_port()
            detail.code = ACTOR_FAILED
            self._rank_failed([(uid, rank)], detail, body, "exit")

    def proc_died(self, proc: int, body: bytes) -> None:
        """Handle the death of a process: every mesh with a rank in it has lost that rank."""
        detail = FailureDetail.decode(body)
        if detail.code == STOPPED or not body:
            return
        with self._lock:
            meshes = list(self._owned.values())
            lost = {proc}
            if detail.code == HOST_DIED and self._tree.lose_host(detail.failure_id):
                # All processes of the host are lost at once. They form a single failure, which the
                # owner gets in one report.
                lost.update(*(mesh._table.procs_on(proc >> 32) for mesh in meshes))
        hit = [pair for one in sorted(lost) for pair in self._hit_on(one, meshes)]
        # A failure is named after the first mesh in this list. Meshes of processes come first, then
        # meshes that are not restarted.
        hit.sort(key=lambda pair: (not _is_procs(pair[0]), self.restarts_procs_of(pair[0])))
        if detail.code == PROC_DIED:
            # Determine them now, because meshes that stop or restart later are no longer known.
            detail.fields["actors"] = self.actors_lost(detail)
        status = detail.fields.get("exit_code")
        kind = "exit" if status == 0 else "abnormal_exit" if status is not None else "proc_died"
        self._rank_failed([(mesh._uid, rank) for mesh, rank in hit], detail, body, kind)

    def _hit_on(self, proc: int, meshes: Sequence[Owned]) -> list[tuple[Owned, int]]:
        """Return the ranks that are lost with a process."""
        hit = [(mesh, rank) for mesh in meshes for rank in mesh._ranks_on(proc)]
        if any(self.restarts_procs_of(mesh) for mesh, _ in hit):
            # The process is replaced when its ranks restart, so the process itself is not lost.
            hit = [pair for pair in hit if not _is_procs(pair[0])]
        return hit

    def actors_lost(self, detail: FailureDetail) -> list[Where]:
        """Return the actors that died with a process, as far as this process knows them."""
        found: list[Where] = list(detail.fields.get("actors", ()))
        known = {(one.mesh_name, one.rank) for one in found}
        name = detail.fields.get("proc")
        if name is None:
            return found
        proc = proc_of(name)
        with self._lock:
            meshes = [mesh for mesh in self._owned.values() if not _is_procs(mesh)]
        for mesh in meshes:
            for index in mesh._ranks_on(proc):
                rank, point = mesh._place(index)
                if (mesh._name, rank) not in known:
                    found.append(
                        Where(mesh_name=mesh._name, actor=mesh._class_name, rank=rank, point=point)
                    )
        return found

    def restarts_procs_of(self, mesh: Owned) -> bool:
        """Return whether the policy of a mesh restarts the process of a dead rank."""
        return self._tree.restart_of(mesh._uid) in ("permanent", "transient")

    def announce_restarts(self, proc: int) -> None:
        """Notify a replacement process which of the actors of its predecessor will be restarted."""
        with self._lock:
            meshes = list(self._owned.values())
        coming = [m._uid for m in meshes if m._ranks_on(proc) and self.restarts_procs_of(m)]
        up_to = self._runtime.engine.new_port()
        self._runtime.tell_agent(proc, "expect_spawns", up_to, coming)

    def _rank_failed(
        self, hit: list[tuple[int, int]], detail: FailureDetail, body: bytes, kind: str
    ) -> None:
        failure_id = detail.failure_id
        if not hit:
            return
        with self._lock:
            failure = self._failures.setdefault(failure_id, _OpenFailure(detail))
            failure.detail = detail
            failure.hit.extend(hit)
        if self._runtime.engine.has_pending_fault(body):
            # A caller still holds a call that failed because of it, and will receive the failure.
            self.observed(failure_id)
        for uid, rank in hit:
            with self._restart_lock:
                future = self._restarting.get((uid, rank))
                if future is not None and future.done():
                    # The rank was restarted and failed again before the result of the restart was
                    # read.
                    self._finish_restart(uid, rank)
            self._do_failed(uid, rank, failure_id, kind)

    def _do_failed(self, uid: int, rank: int, failure_id: int, kind: str) -> None:
        self._do(lambda tree: tree.rank_failed(uid, rank, failure_id, kind))

    def is_new_failure(self, uid: int, rank: int, body: bytes) -> bool:
        """Return whether the failure of a rank of a stopping mesh was not reported before."""
        return self._tree.is_new(uid, rank, FailureDetail.decode(body).failure_id)

    def observed(self, failure_id: int) -> None:
        """Record that a waiting caller received a failure."""
        self._do(lambda tree: tree.observed(failure_id))

    def handled(self, failure_id: int, owner: int, verdict: str) -> None:
        """Record the outcome of a call of `__supervise__`."""
        if recorder.is_on:
            recorder.record("supervised", actor=owner, call=failure_id, text=verdict)
        self._do(lambda tree: tree.handled(failure_id, owner, verdict))

    def raised(self, failure_id: int, owner: int, error: BaseException) -> None:
        """Record that a call of `__supervise__` raised an exception."""
        with self._lock:
            self._failures.setdefault(failure_id, _unknown(failure_id)).error = error
        self.handled(failure_id, owner, "raised")

    def restart_done(self, uid: int, rank: int, ok: bool) -> None:
        """Record whether the restart of a rank succeeded."""
        if recorder.is_on:
            recorder.record("restarted", actor=uid, rank=rank, code=int(not ok))
        self._do(lambda tree: tree.restart_done(uid, rank, ok))

    def tick(self) -> None:
        """Advance the timers of the supervisor."""
        self._do(lambda tree: tree.tick())

    def due_in_s(self) -> float | None:
        """Return the seconds until `tick` is due, or None."""
        return self._tree.due_in_s()

    def nudge(self, port: int) -> None:
        """Wake an idle actor, so that it runs `__supervise__`."""
        engine = self._runtime.engine
        engine.send(CALL, Targets([(engine.me, 0)]), port, _NUDGE, b"", [], 1 << 31, 0, None)

    def end_owner(self, port: int, failed: bool) -> None:
        """Stop the meshes of an actor, youngest first, and wait until they have stopped."""
        if port == ROOT:
            with self._lock:
                self._is_root_ending = self._runtime.is_root
        for mesh in self.children_of(port):
            if mesh._uid in self._runtime.stopped_meshes:
                # The owner requested the stop earlier, possibly without waiting for it.
                self._stop_in_thread(mesh, is_owner_failed=failed)
        event = (lambda t: t.owner_failed(port)) if failed else (lambda t: t.owner_stopping(port))
        self._do(event)
        with self._lock:
            while self._tree.children_of(port):
                self._ended.wait()
            threads, self._stop_threads = self._stop_threads, []
        if port == ROOT:
            # Pending notifications of these threads and of the agent must precede the end.
            for thread in threads:
                thread.join(_TELL_LIMIT_S)
            self._runtime.ask_agent(self._runtime.me, "wake", timeout=_TELL_LIMIT_S)

    def grace_s(self) -> float:
        """Return how long the endpoints of the meshes of an ending owner may continue to run."""
        grace_s = effective().stop_grace_s
        return grace_s if self.stop_grace_max_s is None else min(grace_s, self.stop_grace_max_s)

    def children_of(self, port: int) -> list[Owned]:
        """Return the meshes of an actor, oldest first."""
        with self._lock:
            uids = self._tree.children_of(port)
            return [self._owned[uid] for uid in uids if uid in self._owned]

    def policy_of(self, mesh: Owned) -> RestartPolicy:
        """Return the restart policy of a mesh that this process owns."""
        return self._policies[mesh._uid]

    def is_handling_failures(self) -> bool:
        """Return whether an owner has a pending failure, or ranks are being restarted."""
        return bool(self._restarting) or self._tree.open_count() > 0

    # Actions.

    def _do(self, event: Callable[[Supervisor], list[Todo]]) -> None:
        before = self._tree.due_in_s()
        with self._lock:
            todos = event(self._tree)
        for name, subject, failure_id, why, ranks in todos:
            getattr(self, f"_{name}")(subject, failure_id, why, ranks)
        if before is None and self._tree.due_in_s() is not None:
            # While no timer is set, the agent sleeps without a timeout.
            self._runtime.tell_agent(self._runtime.me, "wake")

    def _restart(self, uid: int, _: int, _why: str, ranks: list[int]) -> None:
        with self._lock:
            mesh = self._owned.get(uid)
        if mesh is not None:
            _run_in_thread(lambda: self._restart_ranks(mesh, ranks))

    def _restart_ranks(self, mesh: Owned, ranks: list[int]) -> None:
        """Restart ranks in parallel and report for each whether the restart succeeded."""
        futures: list[Future[Any] | None] = []
        for rank in ranks:
            try:
                futures.append(mesh._restart_rank(rank))
            except (MeshError, RuntimeError, OSError):
                futures.append(None)
            self._restarting[mesh._uid, rank] = futures[-1]
        for rank, future in zip(ranks, futures, strict=True):
            if future is not None:
                future.exception()
            with self._restart_lock:
                self._finish_restart(mesh._uid, rank)

    def _finish_restart(self, uid: int, rank: int) -> None:
        """Report once whether the restart of a rank succeeded; the caller holds `_restart_lock`."""
        if (uid, rank) in self._restarting:
            future = self._restarting.pop((uid, rank))
            self.restart_done(uid, rank, future is not None and future.exception() is None)

    def _call_supervise(self, owner: int, failure_id: int, why: str, _ranks: list[int]) -> None:
        cell = self._runtime.actors.get(owner)
        if cell is None:
            self.handled(failure_id, owner, "unhandled")
            return
        cell.supervise_soon(
            SuperviseCall(self, owner, failure_id, self.failure(failure_id, owner, why))
        )

    def _fail_owner(self, owner: int, failure_id: int, why: str, _ranks: list[int]) -> None:
        cell = self._runtime.actors.get(owner)
        if cell is not None:
            cell.fail_of(self._raised_by(failure_id) or self.failure(failure_id, owner, why).error)

    def _raised_by(self, failure_id: int) -> BaseException | None:
        """Return the exception that `__supervise__` raised about a failure, once."""
        with self._lock:
            failure = self._failures.get(failure_id)
            if failure is None:
                return None
            error, failure.error = failure.error, None
            return error

    def _root(self, _: int, failure_id: int, why: str, _ranks: list[int]) -> None:
        self._tell(self.failure(failure_id, ROOT, why))

    def _stop_child(self, uid: int, failed: int, _why: str, _ranks: list[int]) -> None:
        with self._lock:
            mesh = self._owned.get(uid)
        if mesh is None:
            self.stopped(uid)
            return
        self._stop_in_thread(mesh, is_owner_failed=bool(failed))

    def _stop_in_thread(self, mesh: Owned, *, is_owner_failed: bool) -> None:
        thread = _run_in_thread(lambda: self._stop_mesh(mesh, is_owner_failed))
        with self._lock:
            self._stop_threads.append(thread)

    def _stop_mesh(self, mesh: Owned, is_owner_failed: bool) -> None:
        """Stop a mesh; report failures during the stop to the program."""
        error = mesh._end(is_owner_failed=is_owner_failed)
        if error is None or is_owner_failed:
            return
        for one in _all_of(error):
            if isinstance(one, ActorFailed) and self._runtime.is_root:
                self._tell_program(MeshFailure(mesh, (mesh,), one, "NoRestart"))
            elif not isinstance(one, (DeadlineExceeded, ProcDied)):
                traceback.print_exception(one)

    def _tell_program(self, failure: MeshFailure) -> None:
        """Notify the ending program of a failure, at most once per failure."""
        failure_id = failure.error.__dict__.get("_failure_id")
        if failure_id is None or self._tree.notify_program(failure_id):
            self._tell(failure)

    def _tell(self, failure: MeshFailure) -> None:
        """Notify the program of an unhandled failure."""
        lifecycle = self._runtime.lifecycle
        if lifecycle.is_exiting:
            # The main thread waits for this thread and reads the exit status next.
            lifecycle.unhandled(failure)
        else:
            _run_in_thread(lambda: lifecycle.unhandled(failure))

    def _owner_done(self, _owner: int, _: int, _why: str, _ranks: list[int]) -> None:
        with self._lock:
            self._ended.notify_all()

    def _settled(self, owner: int, failure_id: int, _outcome: str, _ranks: list[int]) -> None:
        with self._lock:
            failure = self._failures.get(failure_id)
            if failure is None:
                return
            settled = set(self._tree.children_of(owner))
            # Other owners may still have to be notified of the failure.
            failure.hit = [
                (uid, rank)
                for uid, rank in failure.hit
                if uid in self._owned and uid not in settled
            ]
            if not failure.hit:
                del self._failures[failure_id]

    def failure(self, failure_id: int, owner: int, why: str) -> MeshFailure:
        """Create the `MeshFailure` that an owner gets."""
        with self._lock:
            failure = self._failures.get(failure_id) or _unknown(failure_id)
            detail = failure.detail
            mine = set(self._tree.children_of(owner))
            hit = [
                (self._owned[uid], rank)
                for uid, rank in failure.hit
                if uid in self._owned and uid in mine
            ]
        meshes = tuple(dict.fromkeys(mesh for mesh, _ in hit))
        where = _where(*hit[0]) if hit else {}
        return MeshFailure(
            meshes[0] if meshes else None, meshes, failure_error(detail, **where), why
        )


def _unknown(failure_id: int) -> _OpenFailure:
    """Return a failure that is known only by its number."""
    return _OpenFailure(FailureDetail(failure_id, PROC_DIED, {}))


def _where(mesh: Owned, rank: int) -> dict[str, Any]:
    """Return the location fields of a rank for an error."""
    point = dict(mesh._point(rank))
    return {"mesh_name": mesh._name, "actor": mesh._class_name, "rank": rank, "point": point}


def _all_of(error: BaseException) -> list[BaseException]:
    """Return the errors of all ranks that an error represents."""
    return [one for _, one in error.__dict__.get("_mesh_failures", ((None, error),))]


def _is_procs(mesh: Owned) -> bool:
    """Return whether the members of a mesh are processes, which have no class."""
    return mesh._class_name is None


def _run_in_thread(work: Callable[[], object]) -> threading.Thread:
    """Run blocking work outside of the thread of the agent."""
    thread = threading.Thread(target=work, name="mesh-supervise", daemon=True)
    thread.start()
    return thread
