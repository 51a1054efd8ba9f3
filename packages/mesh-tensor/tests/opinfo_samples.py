"""Samples of torch's OpInfo database, each executed locally and on a mesh, and their comparison."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import mesh_tensor as mt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

#: Operations whose values are undefined: random, or uninitialized memory.
UNPROMISED = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal"),
    *("rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "pca_lowrank"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_", "svd_lowrank", "nn.functional.alpha_dropout"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
    *("nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d"),
    *("nn.functional.fractional_max_pool3d", "nn.functional.rrelu"),
    *("nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention"),
}


@dataclass
class Case:
    """One call of an operation, executed locally and issued to the mesh.

    Attributes:
        name: The operation and its form.
        expected: The local result.
        given: The result on the mesh: the values, or the error that was raised immediately.
    """

    name: str
    expected: Any
    given: Any = None
    error: BaseException | None = None


@dataclass
class Report:
    """The results of the cases of one form of an operation.

    Attributes:
        equal: Number of cases with bitwise equal results on all ranks.
        raised: The errors, by the form of the operation and the type of the error.
        wrong: The differences of the other results.
    """

    equal: int = 0
    raised: dict[tuple[str, str], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Placer:
    """Puts tensors on a mesh with the same strides and the same sharing of storage."""

    def __init__(self, mesh: Any) -> None:
        self._put = partial(mesh._engine.put, mesh)
        self._storages: dict[int, Any] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            base = self(plain.conj() if plain.is_conj() else plain._neg_view())
            return base.conj() if plain.is_conj() else base._neg_view()
        key = plain.untyped_storage()._cdata
        if key not in self._storages:
            size = plain.untyped_storage().nbytes() // plain.element_size()
            # The local tensor is stored as well, so that no other storage gets its address.
            self._storages[key] = (plain, self._put(plain.as_strided((size,), (1,), 0)).clone())
        _, stored = self._storages[key]
        made = stored.as_strided(plain.shape, plain.stride(), plain.storage_offset())
        return made.requires_grad_(tensor.requires_grad)


def dtypes_of(op: OpInfo) -> list[torch.dtype]:
    """Return the dtypes with which an operation is tested: floats, and also integers and bools."""
    chosen = [one for one in (torch.float32, torch.int64) if one in op.dtypes]
    if torch.bool in op.dtypes and (not chosen or "logical" in op.name or "bitwise" in op.name):
        chosen.append(torch.bool)
    if op.name in COMPLEX or not chosen:
        chosen += [one for one in (torch.complex64, torch.float64) if one in op.dtypes][:1]
    return chosen


COMPLEX = {
    *("conj", "conj_physical", "resolve_conj", "real", "imag", "angle", "abs", "view_as_real"),
    *("add", "mul", "matmul", "mm", "resolve_neg", "sgn", "complex", "fft.fft", "linalg.solve"),
}


def forms_of(op: OpInfo) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the forms of an operation: out of place, in place, and with `out=`."""
    yield op.name, op.op
    if op.inplace_variant is not None:
        yield f"{op.name} (in place)", op.inplace_variant
    if op.supports_out:
        yield f"{op.name} (out=)", op.op


def samples_of(op: OpInfo, dtype: torch.dtype, bound: int | None) -> list[SampleInput]:
    """Return the first samples of an operation."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(itertools.islice(op.sample_inputs("cpu", dtype), bound))


def case_of(mesh: Any, name: str, call: Callable[..., Any], sample: SampleInput) -> Case | None:
    """Execute a call locally and issue it to the mesh; return None if it fails locally, too."""
    tree = (sample.input, sample.args, sample.kwargs)
    tensors = [one for one in pytree.tree_leaves(tree) if isinstance(one, torch.Tensor)]
    if any(one.layout is not torch.strided for one in tensors):
        return None
    copied = pytree.tree_map_only(torch.Tensor, _copied(), tree)
    with mt.no_mesh.activate():
        placed = pytree.tree_map_only(torch.Tensor, Placer(mesh), tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with mt.no_mesh.activate():
                expected = _called(name, call, copied)
        except Exception:
            return None
        case = Case(name, expected)
        try:
            case.given = _called(name, call, placed)
        except Exception as error:
            case.error = error
    return case


def _copied() -> Callable[[torch.Tensor], torch.Tensor]:
    storages: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            return plain.clone()
        key = plain.untyped_storage()._cdata
        if key not in storages:
            size = plain.untyped_storage().nbytes() // plain.element_size()
            storages[key] = plain.as_strided((size,), (1,), 0).clone()
        made = storages[key].as_strided(plain.shape, plain.stride(), plain.storage_offset())
        return made.requires_grad_(tensor.requires_grad)

    return copied


def _called(name: str, call: Callable[..., Any], tree: Any) -> Any:
    given, args, kwargs = tree
    if name.endswith("(out=)"):
        made = call(given, *args, **kwargs)
        out = pytree.tree_map_only(torch.Tensor, lambda one: torch.empty_like(one).zero_(), made)
        result = call(given, *args, **kwargs, out=out)
        return [result, out]
    if name.endswith("(in place)"):
        result = call(given, *args, **kwargs)
        return [result, given]
    return [call(given, *args, **kwargs), given]


def compare(mesh: Any, cases: list[Case], compares_values: bool) -> Report:
    """Fetch the results of all ranks and compare them with the local ones."""
    report = Report()
    good = [one for one in cases if one.error is None]
    ranks: list[list[Any]] = []
    for rank in range(len(mesh)):
        try:
            ranks.append(mt.inspect([one.given for one in good], dp=rank))
        except mt.OpFailed:
            ranks.append([_fetched(one, rank) for one in good])
    for index, case in enumerate(good):
        errors = [one[index] for one in ranks if isinstance(one[index], Exception)]
        if errors:
            case.error = errors[0]
            continue
        faults = [_difference(case, one[index], compares_values) for one in ranks]
        fault = next((one for one in faults if one), None)
        if fault:
            report.wrong.append(f"{case.name}: {fault}")
        else:
            report.equal += 1
    for case in cases:
        if case.error is not None:
            # The type of a failed operation's error is derived from `OpFailed` and the type of its
            # cause.
            kind = "OpFailed" if isinstance(case.error, mt.OpFailed) else type(case.error).__name__
            report.raised.setdefault((case.name, kind), str(case.error).split("\n", 1)[0])
    return report


def _fetched(case: Case, rank: int) -> Any:
    try:
        return mt.inspect(case.given, dp=rank)
    except mt.OpFailed as error:
        return error


def _difference(case: Case, got: Any, compares_values: bool) -> str | None:
    """Return how a result differs, or None if it does not."""
    expected, spec = pytree.tree_flatten(case.expected)
    found, found_spec = pytree.tree_flatten(got)
    if len(expected) != len(found):
        return f"{len(found)} results instead of {len(expected)}: {found_spec}, {spec}"
    told = pytree.tree_leaves(case.given)
    for want, have, said in zip(expected, found, told, strict=True):
        if not isinstance(want, torch.Tensor):
            if want != have and not (want != want and have != have) and compares_values:
                return f"{have!r} instead of {want!r}"
            continue
        if not isinstance(said, mt.Tensor):
            return f"the result is a {type(said).__name__} of this process"
        for one, who in ((have, "there"), (said, "here")):
            if one.dtype != want.dtype or one.shape != want.shape:
                kinds = [f"{each.dtype}{tuple(each.shape)}" for each in (one, want)]
                return f"{kinds[0]} {who} instead of {kinds[1]}"
        if _strides(said) != _strides(want):
            return f"strides {said.stride()} here instead of {want.stride()}"
        if compares_values and not _same_bits(want, have):
            return f"{have} instead of {want}"[:300]
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides that matter: those of dimensions with more than one element."""
    if not tensor.numel():
        return []
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return _bytes(one) == _bytes(other)


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()
