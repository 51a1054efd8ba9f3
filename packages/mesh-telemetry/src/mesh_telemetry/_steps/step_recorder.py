"""Records the training steps of this process with hooks of the optimizers of PyTorch.

A step ends when the first optimizer of the process has changed its parameters, or when the program
calls `mark_step`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from contextlib import suppress

from mesh_telemetry._collectives.when_imported import when_imported
from mesh_telemetry._steps.steps_file import Step, StepsFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType
    from typing import Any

__all__ = ["StepRecorder", "mark_step"]

_OPTIMIZERS = "torch.optim.optimizer"
_DATA_LOADERS = "torch.utils.data.dataloader"
_log = logging.getLogger("mesh_telemetry")


def mark_step(step: int | None = None) -> None:
    """End a training step of this process, for the table `steps`.

    Programs that call `step()` of an optimizer of PyTorch need not call it. If a program calls it,
    its optimizers no longer end steps. Without telemetry, the call has no effect.

    Args:
        step: The number of the step; by default, one more than that of the previous step.
    """
    for recorder in tuple(_recorders):
        recorder.mark(step)


class StepRecorder:
    """Records the steps of this process.

    Args:
        folder: The folder of the process.
        communication_ns: Returns the time for which collectives were in progress, in nanoseconds.
    """

    def __init__(self, folder: Path, communication_ns: Callable[[], int]) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._communication_ns = communication_ns
        self._file: StepsFile | None = None
        # The optimizer that ends steps; None until there is one, or if the program marks them.
        self._optimizer: weakref.ref[Any] | None = None
        self._is_marked = False
        self._next_number = 0
        self._last_end_ns = self._last_communication_ns = 0
        # Waits for data loaders since the last step, by thread.
        self._input_ns: dict[int, int] = {}
        _recorders.add(self)
        when_imported(_OPTIMIZERS, _observe_optimizers)
        when_imported(_DATA_LOADERS, _observe_data_loaders)

    def close(self) -> None:
        """Record no more steps."""
        _recorders.discard(self)

    def mark(self, number: int | None) -> None:
        """End a step at the request of the program."""
        if not self._is_marked:
            self._is_marked, self._next_number = True, 0
        if number is not None:
            self._next_number = number
        self._end()

    def optimized(self, optimizer: Any) -> None:
        """End a step if this is the optimizer that ends them."""
        if self._is_marked:
            return
        known = None if self._optimizer is None else self._optimizer()
        if known is None:
            self._optimizer = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        self._end()

    def loaded(self, waited_ns: int) -> None:
        """Count a wait of this thread for a data loader."""
        thread = threading.get_ident()
        self._input_ns[thread] = self._input_ns.get(thread, 0) + waited_ns

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return
        now_ns, communication_ns = time.time_ns(), self._communication_ns()
        input_ns = self._input_ns.pop(threading.get_ident(), 0)
        began_ns, self._last_end_ns = self._last_end_ns, now_ns
        communicated_ns = communication_ns - self._last_communication_ns
        self._last_communication_ns = communication_ns
        number, self._next_number = self._next_number, self._next_number + 1
        # The beginning of the first step is not known, and the step includes the set-up.
        if began_ns:
            try:
                if self._file is None:
                    self._file = StepsFile(self._folder)
                self._file.add(Step(number, began_ns, now_ns, input_ns, communicated_ns))
            except OSError:
                # The program needs the step, not its recording.
                _log.warning("the steps of this process are not recorded", exc_info=True)
                self.close()


_recorders: set[StepRecorder] = set()


def _observe_optimizers(module: ModuleType) -> None:
    """Let every optimizer notify the recorders after a step."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None or getattr(module, "_is_observed_by_mesh", False):
        return

    def observed(optimizer: Any, *_: object) -> None:
        for recorder in tuple(_recorders):
            recorder.optimized(optimizer)

    register(observed)
    module._is_observed_by_mesh = True  # type: ignore[attr-defined]


def _observe_data_loaders(module: ModuleType) -> None:
    """Let every iterator of a data loader measure how long its user waits."""
    iterator: Any = getattr(module, "_BaseDataLoaderIter", None)
    following = getattr(iterator, "__next__", None)
    if following is None or getattr(following, "_is_observed_by_mesh", False):
        return

    def observed(self: Any) -> Any:
        began_ns = time.monotonic_ns()
        try:
            return following(self)
        finally:
            with suppress(Exception):
                waited_ns = time.monotonic_ns() - began_ns
                for recorder in tuple(_recorders):
                    recorder.loaded(waited_ns)

    observed._is_observed_by_mesh = True  # type: ignore[attr-defined]
    iterator.__next__ = observed
