"""Records the collectives of this process with hooks of the process groups of `torch.distributed`.

The hooks also see the operations that DDP and FSDP start from C++.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

from mesh_telemetry._collectives.collectives_file import CollectivesFile, ProcessGroup
from mesh_telemetry._collectives.when_imported import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import CodeType, FrameType, ModuleType
    from typing import Any

__all__ = ["ProcessGroups"]

_MODULE = "torch.distributed.distributed_c10d"
# The function of that module that creates every group.
_CREATE = "_new_process_group_helper"
_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "ALLTOALL": "all_to_all",
}
_PEER_TO_PEER = frozenset({"SEND", "RECV"})
# A group identifies its hooks by these numbers.
_hook_numbers = itertools.count(0x6D657368)
# Seconds after which `poll` checks an operation that is still being issued.
_ISSUE_S = 1.0
_log = logging.getLogger("mesh_telemetry")


class ProcessGroups:
    """Records the existing process groups of this process, and groups that are created later.

    It records nothing if `torch.distributed` is not imported, or if its groups have no hooks, as in
    older versions of PyTorch.

    Args:
        folder: The folder of the process.
        module: `torch.distributed.distributed_c10d`, if its import is about to complete.
    """

    def __init__(self, folder: Path, module: ModuleType | None = None) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._is_over = False
        self._lock = threading.Lock()
        self._file: CollectivesFile | None = None
        self._recorders: list[_GroupRecorder] = []
        self._waited: dict[int, tuple[int, Any]] = {}
        self._count = 0
        self._module: ModuleType | None = None
        if module is not None:
            self._attach(module)
        else:
            when_imported(_MODULE, self._attach)

    def busy_ns(self) -> int:
        """Return for how long at least one operation was in progress, in nanoseconds."""
        return 0 if self._file is None else self._file.busy_ns()

    def poll(self) -> None:
        """Record the end of operations and groups that do not report it themselves."""
        groups = getattr(getattr(self._module, "_world", None), "pg_map", None)
        for recorder in tuple(self._recorders):
            if groups is not None and recorder.group not in groups:
                self._recorders.remove(recorder)
                recorder.close()
            else:
                recorder.poll()
        for thread, (serial, work) in tuple(self._waited.items()):
            # PyTorch may wait in C++, and an operation must not be kept longer than it runs.
            if self._file is not None and _is_completed(work):
                self._waited.pop(thread, None)
                self._file.leave(serial)

    def close(self) -> None:
        """Remove the hooks."""
        self._is_over = True
        _observers.discard(self)
        for recorder in self._recorders:
            recorder.close()

    def returned(self, *, is_failed: bool) -> None:
        """Record the end of the operation that this thread has waited for."""
        if self._file is not None and os.getpid() == self._pid:
            self._waited.pop(threading.get_ident(), None)
            self._file.returned(is_failed=is_failed)

    def add(self, group: Any, about: dict[str, Any]) -> None:
        """Record a new group.

        Args:
            group: The group; another object if this process is not a member.
            about: The arguments of the function that has created it.
        """
        if self._is_over or os.getpid() != self._pid or not hasattr(group, "register_pre_hook"):
            return
        try:
            with self._lock:
                if self._file is None:
                    self._file = CollectivesFile(self._folder)
                number, self._count = self._count, self._count + 1
                described = ProcessGroup(
                    number,
                    str(about["group_name"]),
                    _world_of(about["store"]),
                    tuple(about["global_ranks_in_group"]) or tuple(range(about["group_size"])),
                    int(about["group_rank"] or 0),
                    str(about["backend"]),
                )
                self._file.add_group(described)
                recorder = _GroupRecorder(self._file, described, group, self._waited)
                self._recorders.append(recorder)
        except Exception:
            # The program needs the group, not its recording.
            _log.warning("the collectives of a process group are not recorded", exc_info=True)

    def _attach(self, module: ModuleType) -> None:
        if not hasattr(module, _CREATE):
            return
        self._module = module
        _observers.add(self)
        _observe(module)
        world: Any = getattr(module, "_world", None)
        for group, (backend, store) in list(getattr(world, "pg_map", {}).items()):
            with suppress(Exception):
                ranks = world.pg_group_ranks[group]
                about = {
                    "group_name": world.pg_names[group],
                    "store": store,
                    "global_ranks_in_group": sorted(ranks, key=ranks.get),
                    "group_size": group.size(),
                    "group_rank": group.rank(),
                    "backend": backend,
                }
                self.add(group, about)


# The instances that are notified of new groups.
_observers: set[ProcessGroups] = set()


def _observe(module: Any) -> None:
    """Wrap the function that creates groups, and `Work.wait`, to notify the observers."""
    create = getattr(module, _CREATE)
    if getattr(create, "_is_observed", False):
        return
    signature = inspect.signature(create)

    def observed(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        if _observers:
            about = signature.bind(*args, **kwargs).arguments
            for observer in tuple(_observers):
                observer.add(made[0] if isinstance(made, tuple) else made, about)
        return made

    observed._is_observed = True  # type: ignore[attr-defined]
    setattr(module, _CREATE, observed)
    _observe_waits(module.Work)


def _observe_waits(work: Any) -> None:
    wait = work.wait

    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_failed = True
        try:
            result = wait(self, *args, **kwargs)
            is_failed = False
            return result
        finally:
            for observer in tuple(_observers):
                observer.returned(is_failed=is_failed)

    work.wait = observed


class _Issued(NamedTuple):
    """An operation between both hooks."""

    serial: int
    thread: int
    since: float
    is_on_cpu: bool
    is_async: bool


class _GroupRecorder:
    """Records one group.

    Args:
        file: The file to write to.
        about: The description of the group.
        group: The group.
        waited: The last operation of each thread that the thread itself waits for; of all groups.
    """

    def __init__(
        self,
        file: CollectivesFile,
        about: ProcessGroup,
        group: Any,
        waited: dict[int, tuple[int, Any]],
    ) -> None:
        self._file = file
        self._pid = os.getpid()
        self._number = about.number
        self._is_gloo = "gloo" in about.backend
        self.group = group
        self._hook_number = next(_hook_numbers)
        self._sequence = 0
        self._peer_sequences: dict[tuple[str, int], int] = {}
        # Serial numbers of operations that are being issued, by the number that the group gives
        # them.
        self._issuing: dict[int, _Issued] = {}
        # Operations that have not ended; with the work that `poll` checks, or None if a callback
        # records the end.
        self._running: dict[int, Any] = {}
        self._waited = waited
        group.register_pre_hook(self._hook_number, self._before)
        group.register_post_hook(self._hook_number, self._after)

    def close(self) -> None:
        """Remove the hooks, and record the operations in progress as failed."""
        with suppress(Exception):
            self.group.unregister_pre_hook(self._hook_number)
            self.group.unregister_post_hook(self._hook_number)
        for serial in (*self._running, *(one.serial for one in self._issuing.values())):
            self._file.leave(serial, is_failed=True)
        self._issuing.clear()
        self._running.clear()

    def poll(self) -> None:
        """Record the end of operations that do not report it themselves."""
        now = time.monotonic()
        for number, one in tuple(self._issuing.items()):
            # An operation that raises an exception while it is issued is not reported.
            if now - one.since > _ISSUE_S and not _is_in_torch(one.thread):
                self._issuing.pop(number, None)
                self._file.leave(one.serial, is_failed=True)
        for serial, work in tuple(self._running.items()):
            if work is not None and _is_completed(work):
                self._done(serial)

    def _before(self, begun: Any) -> None:
        if os.getpid() != self._pid:
            return
        try:
            name, is_peer_to_peer = _kind_of(begun.name)
            peer = begun.root
            if is_peer_to_peer:
                sequence = self._peer_sequences.get((name, peer), 0)
                self._peer_sequences[name, peer] = sequence + 1
            else:
                sequence = self._sequence
                self._sequence = sequence + 1
            tensors = begun.input_tensors or begun.output_tensors
            is_on_cpu = all(map(_is_on_cpu, tensors)) if tensors else self._is_gloo
            serial = self._file.enter(
                self._number,
                name,
                peer,
                sequence,
                sum(tensor.nbytes for tensor in tensors),
                _shape_of(tensors),
                _caller(sys._getframe()),
                is_async=begun.async_op,
                is_waited=is_on_cpu and not begun.async_op,
            )
            self._issuing[begun.op_id] = _Issued(
                serial, threading.get_ident(), time.monotonic(), is_on_cpu, begun.async_op
            )
        except Exception:
            _log.debug("a collective was not recorded", exc_info=True)

    def _after(self, ended: Any) -> None:
        one = self._issuing.pop(ended.op_id, None)
        if one is None:
            return
        try:
            work = ended.work
            if work is None:
                self._done(one.serial)
            elif one.is_on_cpu and not one.is_async:
                # `returned` records the end. A callback would require a thread switch.
                self._waited[one.thread] = one.serial, work
            elif one.is_on_cpu:
                self._running[one.serial] = None
                work.get_future().add_done_callback(partial(self._done, one.serial))
            else:
                # On GPUs a future is done as soon as the operation is in the queue of its stream.
                self._running[one.serial] = work
        except Exception:
            _log.debug("the end of a collective was not recorded", exc_info=True)

    def _done(self, serial: int, future: Any = None) -> None:
        self._running.pop(serial, None)
        self._file.leave(serial)


def _is_completed(work: Any) -> bool:
    """Return whether an operation has ended, also with an error."""
    try:
        return bool(work.is_completed())
    except RuntimeError:
        return True


_kinds: dict[int, tuple[str, bool]] = {}


def _kind_of(kind: Any) -> tuple[str, bool]:
    """Return the name of an operation, and whether only two ranks take part."""
    # The names are cached, because this enumeration searches for a name at each access.
    known = _kinds.get(number := int(kind))
    if known is None:
        name: str = kind.name
        known = _NAMES.get(name) or name.lower(), name in _PEER_TO_PEER
        _kinds[number] = known
    return known


def _is_on_cpu(tensor: Any) -> bool:
    return bool(tensor.is_cpu)


def _shape_of(tensors: Any) -> str:
    """Describe the first of the tensors, and how many there are."""
    return _described(tensors[0].dtype, tensors[0].shape, len(tensors)) if tensors else ""


@lru_cache(1024)
def _described(dtype: Any, shape: Sequence[int], count: int) -> str:
    text = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return text if count == 1 else f"{text} and {count - 1} more"


def _caller(frame: FrameType | None) -> tuple[str, str, int]:
    """Return file, function and line of the innermost frame that is not of PyTorch or Mesh."""
    last = frame
    while frame is not None:
        if not _is_library(frame.f_code):
            last = frame
            break
        frame = frame.f_back
    if last is None:
        return "", "", 0
    return last.f_code.co_filename, last.f_code.co_qualname, last.f_lineno or 0


def _is_in_torch(thread: int) -> bool:
    """Return whether the Python stack of a thread contains a function of PyTorch."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if _is_library(frame.f_code):
            return True
        frame = frame.f_back
    return False


_library_code: dict[CodeType, bool] = {}
_torch_root: list[str] = []


def _is_library(code: CodeType) -> bool:
    known = _library_code.get(code)
    if known is None:
        if not _torch_root:
            _torch_root.append(os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep)
        file = code.co_filename
        known = file.startswith(_torch_root[0]) or f"{os.sep}mesh_telemetry{os.sep}" in file
        _library_code[code] = known
    return known


def _world_of(store: Any) -> str:
    """Return the address of the store of a world."""
    with suppress(Exception):
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "host"):
            return f"{store.host}:{store.port}"
        if hasattr(store, "path"):
            return str(store.path)
    return ""
