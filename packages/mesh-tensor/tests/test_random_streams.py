"""Random programs on several streams with borrows give the same values as a local emulation.

They extend `test_random_programs`: tensors are on one of three streams, are borrowed by others, and
are also used when that is not allowed.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_settings import HYPOTHESIS_SETTINGS
from test_random_programs import Pair, Program, mesh

import mesh_tensor as mt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["mesh"]

_streams = [mt.get_active_stream(), mt.Stream("second"), mt.Stream("third")]


class Lent:
    """A borrow in the emulation.

    Args:
        origin: The borrowed tensor: its memory, and the borrow through which it came, if any.
        is_mutable: Whether the borrower may write.
    """

    def __init__(self, origin: tuple[int, Lent | None], is_mutable: bool) -> None:
        self.origin = origin
        self.is_mutable = is_mutable
        self.lasts = True


class StreamsProgram(Program):
    """A program on several streams."""

    def __init__(self, mesh: Any, draw: Callable[[int], int]) -> None:
        self._lent: dict[Lent, mt.Borrow] = {}
        self._is_writing = False
        super().__init__(mesh, draw)

    def check(self) -> None:
        """Compare the tensors that may be read."""
        everything = self._pairs
        self._pairs = [one for one in everything if self._refusal(one, False) is None]
        super().check()
        self._pairs = everything

    def drop_all(self) -> None:
        """Drop all borrows."""
        for lent, borrow in list(self._lent.items()):
            borrow.drop()
            self._drop_lent(lent)

    def _steps(self, fails: bool) -> list[Callable[[], None]]:
        more = [self._borrow, self._borrow, self._borrow, self._end_borrow, self._misuse]
        return [*super()._steps(fails), *more]

    def _line_of(self, pair: Pair) -> str:
        # Any of several concurrent failures may be reported, because streams have no common order.
        return "# the line that"

    def _any(self) -> Pair:
        fits = [one for one in self._pairs if self._refusal(one, self._is_writing) is None]
        if not fits:
            self._make_filled()
            return self._pairs[-1]
        return fits[self._draw(len(fits))]

    def _like(self, pair: Pair) -> Pair:
        everything = self._pairs
        self._pairs = [
            one
            for one in everything
            if one.there.stream is pair.there.stream and self._refusal(one, False) is None
        ]
        try:
            return super()._like(pair)
        finally:
            self._pairs = everything

    def _add(
        self,
        there: Any,
        here: dict[int, torch.Tensor],
        operands: Sequence[Pair] = (),
        is_view: bool = False,
    ) -> None:
        super()._add(there, here, operands, is_view)
        _note(self._pairs[-1], _loan_of(operands[0]) if is_view else None)

    def _stream(self) -> mt.Stream:
        return _streams[self._draw(3)]

    def _make_filled(self) -> None:
        with self._stream().activate():
            super()._make_filled()

    def _make_ranks(self) -> None:
        with self._stream().activate():
            super()._make_ranks()

    def _slice_mesh(self) -> None:
        with self._stream().activate():
            super()._slice_mesh()

    def _moved(self, tensor: Any, goal: Any) -> Any:
        return mt.to_mesh(tensor, goal, stream=(None, *_streams)[self._draw(4)])

    def _index(self, pair: Pair, rank: int) -> Any:
        with pair.there.stream.activate():
            return super()._index(pair, rank)

    def _writing(self, step: Callable[[], None]) -> None:
        self._is_writing = True
        try:
            step()
        finally:
            self._is_writing = False

    def _write(self) -> None:
        self._writing(super()._write)

    def _reshape(self) -> None:
        self._writing(super()._reshape)

    def _fail(self) -> None:
        self._writing(super()._fail)

    def _borrow(self) -> None:
        """Lend a tensor to a stream, possibly its own."""
        is_mutable = bool(self._draw(2))
        self._is_writing = is_mutable
        pair = self._any()
        self._is_writing = False
        there, borrow = self._stream().borrow(pair.there, mutable=is_mutable)
        lent = Lent(_family(pair), is_mutable)
        self._lent[lent] = borrow
        # A different tensor on the same memory: shape changes of the original do not affect it.
        here = {rank: one.detach() for rank, one in pair.here.items()}
        self._pairs.append(Pair(there, here, pair.lost))
        _note(self._pairs[-1], lent)

    def _end_borrow(self) -> None:
        if not self._lent:
            return
        lent = list(self._lent)[self._draw(len(self._lent))]
        if self._draw(4):
            self._lent[lent].drop()
            self._drop_lent(lent)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._drop_lent(lent)

    def _drop_lent(self, lent: Lent) -> None:
        lent.lasts = False
        self._lent.pop(lent, None)
        for further in list(self._lent):
            if further.origin[1] is lent:
                self._drop_lent(further)

    def _misuse(self) -> None:
        """Use a tensor in a way that is not allowed, which must have no effect."""
        is_write = bool(self._draw(2))
        refused = [one for one in self._pairs if self._refusal(one, is_write) is not None]
        if not refused:
            return
        pair = refused[self._draw(len(refused))]
        error = self._refusal(pair, is_write)
        assert error is not None
        uses: list[Callable[[Any], Any]] = [
            lambda one: one.add_(1),
            lambda one: one.copy_(one),
            lambda one: self._stream().borrow(one, mutable=True),
        ]
        if not is_write:
            uses = [lambda one: one + 1, mt.inspect, lambda one: one[...]]
            uses += [lambda one: self._stream().borrow(one)]
        with pytest.raises(error):
            uses[self._draw(len(uses))](pair.there)

    def _refusal(self, pair: Pair, is_write: bool) -> type[mt.BorrowError] | None:
        """Return the error for a use of a tensor that is not allowed, or None."""
        own = _loan_of(pair)
        if own is not None and not own.lasts:
            return mt.BorrowEnded
        if own is not None and is_write and not own.is_mutable:
            return mt.MutatingBorrow
        lent = [one for one in self._lent if one.origin == _family(pair)]
        if any(one.is_mutable for one in lent):
            return mt.BorrowedMutably
        return mt.MutatingBorrow if lent and is_write else None


def _note(pair: Pair, lent: Lent | None) -> None:
    pair.lent = lent  # type: ignore[attr-defined]


def _loan_of(pair: Pair) -> Lent | None:
    found: Lent | None = getattr(pair, "lent", None)
    return found


def _family(pair: Pair) -> tuple[int, Lent | None]:
    first = next(iter(pair.here.values()))
    return first.untyped_storage()._cdata, _loan_of(pair)


def run(mesh: Any, data: st.DataObject, steps: int, fails: bool) -> None:
    """Run a program, and compare the values during the run and at the end."""
    program = StreamsProgram(mesh, lambda below: data.draw(st.integers(0, below - 1)))
    try:
        for count in range(data.draw(st.integers(1, steps))):
            program.step(fails)
            if count % 8 == 7:
                program.check()
    finally:
        program.drop_all()
    program.check()


@given(st.data())
@settings(HYPOTHESIS_SETTINGS, max_examples=60)
def test_programs_on_streams_return_the_same_on_each_rank_as_locally(
    mesh: Any, data: st.DataObject
) -> None:
    run(mesh, data, 30, fails=False)


@given(st.data())
@settings(HYPOTHESIS_SETTINGS, max_examples=60)
def test_only_dependents_of_a_failure_on_a_stream_are_lost_and_name_its_line(
    mesh: Any, data: st.DataObject
) -> None:
    run(mesh, data, 30, fails=True)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@given(st.data(), st.booleans())
@settings(HYPOTHESIS_SETTINGS, max_examples=2000, derandomize=False)
def test_many_long_programs_on_streams(mesh: Any, data: st.DataObject, fails: bool) -> None:
    run(mesh, data, 80, fails=fails)
