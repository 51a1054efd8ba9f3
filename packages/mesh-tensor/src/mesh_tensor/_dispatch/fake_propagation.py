"""Determines the results of operations without values, once for each kind of operands."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._library.utils import is_builtin
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from mesh_tensor._errors import DataDependentError, UnsupportedOp
from mesh_tensor._instructions.compiled_op import Number, Operand
from mesh_tensor._instructions.results import DataDependentResults, NewTensor
from mesh_tensor._tensor.meta import Kind, Meta, MetaTable, kind_of
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["OpResult", "propagate", "without_values"]

#: The supported types of arguments other than tensors.
_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)

#: The mode that `_fakes` returns supports only one thread at a time.
_lock = threading.RLock()


@functools.cache
def _fakes() -> FakeTensorMode:
    """Return the mode in which tensors have no values.

    Creating the first such mode imports PyTorch's compiler, which takes about as long as importing
    PyTorch. It is therefore created on first use, and only in the program, while the processes are
    still starting.
    """
    made = FakeTensorMode()
    # The results are stored in compiled ops. The cache of the mode would grow with every new shape.
    made.cache_enabled = False
    return made


class _LogSuppression(threading.local):
    """Whether log records are suppressed, because a failure is also raised as an exception."""

    is_on = False

    def filter(self, _: logging.LogRecord) -> bool:
        return not self.is_on


_log_suppression = _LogSuppression()
logging.getLogger("torch._subclasses.fake_tensor").addFilter(_log_suppression.filter)


@contextmanager
def without_values() -> Iterator[None]:
    """Create tensors without values within the `with` block, regardless of the active mesh."""
    with _lock, _disable_current_modes(), _fakes():
        was, _log_suppression.is_on = _log_suppression.is_on, True
        try:
            yield
        finally:
            _log_suppression.is_on = was


@dataclass(frozen=True)
class OpResult:
    """The result of an operation.

    Attributes:
        parts: The return value: a `NewTensor`, an `Operand` that is returned, or a constant; single
            or nested in lists and tuples. `DataDependentResults` if only the processes can
            determine it.
        mutated: The indexes of the operands that the operation writes to.
        reshaped: For each operand whose metadata it changes: index, new metadata, and the operand
            whose storage it shares then.
        args: The positional arguments, with an `Operand` for each tensor.
        kwargs: The keyword arguments.
    """

    parts: Any
    mutated: tuple[int, ...]
    reshaped: tuple[tuple[int, Meta, int | None], ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def numbers(self) -> int:
        """The number of floats that are sent with each operation."""
        return sum(type(one) is Number for one in (*self.args, *self.kwargs.values()))

    @property
    def results(self) -> tuple[tuple[int, ...] | None, ...]:
        """The path of each new tensor in the return value; None is the return value itself."""
        if type(self.parts) is DataDependentResults:
            if self.parts.is_single:
                return (None,) if self.parts.returned == (0,) else ()
            places = enumerate(self.parts.returned)
            return tuple((place,) for place, one in places if type(one) is int)
        return tuple(path or None for path, _ in _new_tensors(self.parts, ()))

    @property
    def metas(self) -> list[Meta]:
        """The metadata of the new tensors, as far as it is known."""
        return [one.meta for _, one in _new_tensors(self.parts, ())]


def _new_tensors(parts: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], NewTensor]]:
    if type(parts) is NewTensor:
        yield path, parts
    elif type(parts) in (list, tuple):
        for place, one in enumerate(parts):
            yield from _new_tensors(one, (*path, place))


def propagate(
    metas: MetaTable, mesh: DeviceMesh, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> OpResult:
    """Run an operation on tensors without values.

    Raises:
        UnsupportedOp: It has arguments or results that cannot be described.
        DataDependentError: Its results depend on values in a way that the processes cannot
            describe.
        Exception: PyTorch rejects the operands.
    """
    flat, spec = pytree.tree_flatten((args, kwargs))
    template = [_checked(func, one) for one in flat]
    places = itertools.count()
    template = [Operand(next(places)) if type(one) is Tensor else one for one in template]
    plain_args, plain_kwargs = pytree.tree_unflatten(template, spec)
    operands = [one for one in flat if type(one) is Tensor]
    if operands:
        plain_args, plain_kwargs = _without_floats(plain_args, plain_kwargs)
    written = _written(func, args, kwargs)
    mutated = tuple(itertools.chain(*written))
    with _lock, _disable_current_modes(), _fakes():
        fakes = [one._meta.fake_tensor() for one in operands]
        before = [one.untyped_storage()._cdata for one in fakes]
        left = iter(fakes)
        fake_leaves = [next(left) if type(one) is Tensor else one for one in flat]
        fake_args, fake_kwargs = pytree.tree_unflatten(fake_leaves, spec)
        result, is_learned = _run(func, fake_args, fake_kwargs)
    if is_learned is not None:
        parts: Any = _data_dependent_results(func, mesh, operands, written, is_learned)
        return OpResult(parts, mutated, (), plain_args, plain_kwargs)
    now = [(_kind_of(func, fake), _storage_of(fake, before, at)) for at, fake in enumerate(fakes)]
    reshaped = tuple(
        (place, metas.of_kind(mesh, kind), moved)
        for place, (kind, moved) in enumerate(now)
        if moved is not None or _is_reshaped(func, kind, operands[place]._meta.kind)
    )
    parts = _parts(metas, mesh, func, fakes, before, _with_separate_storage(func, before, result))
    return OpResult(parts, mutated, reshaped, plain_args, plain_kwargs)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool | None]:
    """Return the result and None; or None and whether querying the processes once is sufficient."""
    if func._schema.name.startswith(("aten::quantize_", "aten::_empty_affine")):
        raise UnsupportedOp(
            f"{func} returns a quantized tensor, but distributed tensors are dense: call it in a"
            " remote function"
        )
    if not is_builtin(func) and any(_is_value(one.type) for one in func._schema.returns):
        # The shape rule of a custom operation describes tensors and does not know values.
        return None, False
    _log_suppression.is_on = True
    try:
        return _corrected(func, args, func(*args, **kwargs)), None
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None, False
    except (UnsupportedOperatorException, NotImplementedError):
        return None, True
    except AssertionError as error:
        raise UnsupportedOp(f"{func} cannot run on a mesh: torch has no rule for it") from error
    finally:
        _log_suppression.is_on = False


def _corrected(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Correct wrong results of PyTorch for tensors without values."""
    if func is torch.ops.aten.native_group_norm.default and args[0].device.type == "cpu":
        # On the CPU, the kernel preserves the memory format.
        first, *rest = result
        return (first.contiguous(memory_format=suggest_memory_format(args[0])), *rest)
    return result


def _is_value(kind: Any) -> bool:
    return isinstance(kind, (torch.IntType, torch.FloatType, torch.BoolType, torch.NumberType))


def _with_separate_storage(func: Any, storages: Sequence[int], result: Any) -> Any:
    """Allocate separate storage for results that a custom operation does not declare as aliases.

    Its rule may return an operand, or a view of one, to describe a result of that shape.
    """
    if is_builtin(func):
        return result
    declared = func._schema.returns
    each = result if isinstance(result, tuple) and len(declared) > 1 else (result,)

    def own(one: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(one) if one.untyped_storage()._cdata in storages else one

    made = [
        one if how.alias_info is not None else pytree.tree_map_only(torch.Tensor, own, one)
        for one, how in zip(each, declared, strict=True)
    ]
    return tuple(made) if each is result else made[0]


def _checked(func: Any, argument: Any) -> Any:
    if type(argument) is Tensor or isinstance(argument, _CONSTANTS):
        return argument
    if isinstance(argument, torch.Generator):
        raise UnsupportedOp(
            f"{func} got a local generator, but the numbers are drawn on the mesh: omit it, and"
            " seed the mesh"
        )
    raise UnsupportedOp(
        f"{func} got an argument of type {type(argument).__qualname__}, which cannot be sent: call"
        " it in a remote function"
    )


def _data_dependent_results(
    func: Any,
    mesh: DeviceMesh,
    operands: Sequence[Tensor],
    written: Sequence[tuple[int, ...]],
    is_learned: bool,
) -> DataDependentResults:
    """Determine from the schema what the processes have to describe."""
    if not operands:
        raise UnsupportedOp(f"{func} has no rule for its results: call it in a remote function")
    given_back = (Operand(one[0]) for one in written if one)
    count = itertools.count()
    returned: list[int | Operand] = []
    for one in func._schema.returns:
        if isinstance(one.type, torch.ListType):
            raise DataDependentError(
                f"the result of {func} on {mesh} depends on the values of its operands: fetch them"
                " with mesh_tensor.inspect, or call it in a remote function"
            )
        is_written = one.alias_info is not None and one.alias_info.is_write
        returned.append(next(given_back) if is_written else next(count))
    mutated = tuple(itertools.chain(*written))
    return DataDependentResults(tuple(returned), len(returned) == 1, is_learned, mutated)


def _without_floats(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace each top-level float by a `Number`: it is sent with each operation."""
    places = itertools.count()

    def plain(one: Any) -> Any:
        return Number(next(places)) if type(one) is float else one

    return tuple(map(plain, args)), {name: plain(one) for name, one in kwargs.items()}


def _kind_of(func: Any, result: torch.Tensor) -> Kind:
    if result.layout is not torch.strided or result.is_quantized:
        what = "quantized" if result.layout is torch.strided else str(result.layout)
        raise UnsupportedOp(
            f"{func} returns a tensor that is {what}, but distributed tensors are dense: call it in"
            " a remote function"
        )
    return kind_of(result)


def _is_reshaped(func: Any, now: Kind, before: Kind) -> bool:
    if now == before:
        return False
    if torch.Tag.inplace_view in func.tags or func._schema.name == "aten::set_":
        return True
    # An `out` tensor of the right shape keeps its strides, regardless of the result of PyTorch's
    # shape rules.
    return now.shape != before.shape or now.dtype != before.dtype


def _storage_of(fake: torch.Tensor, storages: Sequence[int], own: int | None = None) -> int | None:
    """Return the operand whose storage a tensor has now; None if new or still its own."""
    storage = fake.untyped_storage()._cdata
    if own is not None and storage == storages[own]:
        return None
    return next((place for place, one in enumerate(storages) if one == storage), None)


def _parts(
    metas: MetaTable,
    mesh: DeviceMesh,
    func: Any,
    fakes: list[torch.Tensor],
    storages: list[int],
    result: Any,
) -> Any:
    if isinstance(result, torch.Tensor):
        for place, fake in enumerate(fakes):
            if result is fake:
                return Operand(place)
        kind = _kind_of(func, result)
        return NewTensor(metas.of_kind(mesh, kind), _storage_of(result, storages))
    if isinstance(result, (list, tuple)):
        parts = [_parts(metas, mesh, func, fakes, storages, one) for one in result]
        return parts if isinstance(result, list) else tuple(parts)
    if result is None or isinstance(result, (bool, int, float)):
        return result
    raise UnsupportedOp(
        f"{func} returns a {type(result).__qualname__}: call it in a remote function"
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the operand indexes of each argument that the operation writes to."""
    found: list[tuple[int, ...]] = []
    count = 0
    named = {argument.name: argument for argument in func._schema.arguments}
    given = [*zip(func._schema.arguments, args, strict=False)]
    given += [(named[name], value) for name, value in kwargs.items() if name in named]
    for argument, value in given:
        tensors = sum(type(one) is Tensor for one in pytree.tree_leaves(value))
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(tuple(range(count, count + tensors)))
        count += tensors
    return found
