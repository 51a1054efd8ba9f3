"""Functions of tensors that are recorded once and then replayed with one message."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._errors import TensorError, TraceError
from mesh_tensor._mesh.activation import active_mesh
from mesh_tensor._tensor.tensor import Tensor
from mesh_tensor._trace.recording import Recording, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._engine.engine import Engine

__all__ = ["Traced", "trace"]

P = ParamSpec("P")
R = TypeVar("R")

#: A warning is issued after this many consecutive unusable recordings of one function, or this many
#: recordings for one kind of arguments.
_RECORDINGS_MAX = 8


class Traced(Generic[P, R]):
    """A function whose operations are recorded at the first call and replayed afterwards.

    Attributes:
        recorded: How many times the function was recorded.
        replayed: How many times a recording was replayed.
    """

    def __init__(self, function: Callable[P, R], check_every: int) -> None:
        self._function = function
        self._check_every = check_every
        self._recordings: dict[Any, list[Recording]] = {}
        self._unreplayed = 0
        self.recorded: int = 0
        self.replayed: int = 0
        self._name = getattr(function, "__name__", "function")
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or replay a recording for arguments of the same kind.

        Raises:
            TraceError: The function does something that cannot be replayed.
            TensorError: No argument is a distributed tensor, and no mesh is active.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        engine, leaves = _placed(leaves)
        if engine.stream.recorder is not None:
            # The call is part of another trace.
            return self._function(*args, **kwargs)
        key = _key(leaves, spec)
        recordings = self._recordings.setdefault(key, [])
        for recording in recordings:
            if recording.holds():
                if not self._is_to_be_checked():
                    self.replayed += 1
                    return cast("R", recording.replay(leaves))
                return self._checked(engine, recording, leaves, spec)
        return self._record(engine, recordings, leaves, spec)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound: Traced[Any, R] = Traced(self._function.__get__(instance), self._check_every)
        # Cache the bound function for the next access.
        instance.__dict__[self._name] = bound
        return bound

    def clear(self) -> None:
        """Discard all recordings."""
        self._recordings.clear()

    def _is_to_be_checked(self) -> bool:
        return self._check_every > 0 and (self.replayed + 1) % self._check_every == 0

    def _record(
        self, engine: Engine, recordings: list[Recording], leaves: list[Any], spec: Any
    ) -> R:
        self.recorded += 1
        if len(recordings) >= _RECORDINGS_MAX:
            self._warn(f"{recordings[0].changed()} differs at each call")
            recordings.clear()
        recorded = record(engine, self._function, leaves, spec)
        if recorded.recording is not None:
            recordings.append(recorded.recording)
            self._unreplayed = 0
        else:
            self._unreplayed += 1
            if self._unreplayed == _RECORDINGS_MAX:
                self._warn(recorded.unusable_reason)
        return cast("R", recorded.result)

    def _checked(self, engine: Engine, recording: Recording, leaves: list[Any], spec: Any) -> R:
        self.replayed += 1
        fresh = record(engine, self._function, leaves, spec)
        difference = fresh.unusable_reason
        if fresh.recording is not None:
            difference = fresh.recording.difference(recording)
        if difference:
            raise TraceError(f"{self._name} no longer does what was recorded: {difference}")
        return cast("R", fresh.result)

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"the trace {self._name} was recorded {self.recorded} times and replayed "
            f"{self.replayed} times: {why}",
            RuntimeWarning,
            stacklevel=4,
        )


@overload
def trace(function: Callable[P, R], *, check_every: int = 0) -> Traced[P, R]: ...


@overload
def trace(
    function: None = None, *, check_every: int = 0
) -> Callable[[Callable[P, R]], Traced[P, R]]: ...


def trace(function: Any = None, *, check_every: int = 0) -> Any:
    """Record a function of distributed tensors, and replay it from the second call on.

    The first call with arguments of a given kind runs the function and records its operations.
    Later calls send one message instead of all operations. A replay includes the accumulation of
    gradients in parameters, in-place writes, collectives and random numbers. The function is
    recorded again for arguments of another kind, and when other state that it depends on changes:
    numbers in closures, globals and objects, and the settings of modules and optimizers.

    Args:
        function: The function to trace. It must perform the same operations each time, must not
            read values, and must return all tensors that it creates. Other side effects, such as
            printing, occur only when it is recorded.
        check_every: At every `check_every`-th call, run the function itself and compare it with the
            recording. Default: 0, never.

    Raises:
        ValueError: `check_every` is negative.
    """
    if check_every < 0:
        raise ValueError(
            f"invalid check_every {check_every}: pass a number of calls, or 0 for never"
        )
    if function is None:
        return functools.partial(trace, check_every=check_every)
    return Traced(function, check_every)


def _placed(leaves: list[Any]) -> tuple[Engine, list[Any]]:
    """Return the engine of a call, and its arguments with local tensors sent to the mesh."""
    mesh = active_mesh.get()
    for one in leaves:
        if type(one) is Tensor:
            mesh = one._meta.mesh
            break
    if mesh is None:
        raise TensorError("a traced function got no tensor, and no mesh is active: activate one")
    engine = mesh._engine
    if any(isinstance(one, torch.Tensor) and type(one) is not Tensor for one in leaves):
        leaves = [
            engine.put(mesh, one)
            if isinstance(one, torch.Tensor) and type(one) is not Tensor
            else one
            for one in leaves
        ]
    return engine, leaves


def _key(leaves: list[Any], spec: Any) -> tuple[Any, ...]:
    """Return the key for the kind of a call."""
    parts: list[Any] = [spec, active_mesh.get(), torch.is_grad_enabled()]
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        parts += (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda"))
    seen: dict[int, int] = {}
    for index, one in enumerate(leaves):
        if type(one) is Tensor:
            ref = one._ref
            base = seen.setdefault(id(ref.base or ref), index)
            parts += (one._meta, one.requires_grad, base, seen.setdefault(id(ref), index))
        elif type(one) is float:
            parts += (float, one.hex())
        else:
            parts += (type(one), one)
    try:
        hash(made := tuple(parts))
    except TypeError:
        raise TraceError(
            "an argument of a traced function that is not a tensor must be hashable: pass numbers,"
            " strings, tuples, or modules"
        ) from None
    return made
