"""The simulated backend of an engine: executes the same instructions, without values."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mesh_core import Region, ValueMesh
from mesh_core.spi import CompletionFuture
from mesh_tensor._errors import NoValues
from mesh_tensor._instructions.call_site import TraceCallSite
from mesh_tensor._instructions.compiled_op import Eviction
from mesh_tensor._instructions.instruction_stream import FREE
from mesh_tensor._simulator.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Future
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._instructions.call_site import CallSite
    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._simulator.event_log import EventLog
    from mesh_tensor._simulator.simulated_engine import Simulated
    from mesh_tensor._simulator.steps import SimulatedStep
    from mesh_tensor._simulator.world import SimulatedWorld

__all__ = ["SimulatedWorkers"]

_GROWTH = 1024


class _SimulatedEndpoint:
    """An endpoint, with the interface that the engine uses."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.call: Callable[..., Future[Any]] = lambda *args: CompletionFuture.completed(
            function(*args)
        )
        self.call_one = self.choose = self.stream = self.call
        self.broadcast = function


class _Reply(NamedTuple):
    """A reply in the form in which processes with several streams send it: with their failures."""

    value: Any
    failures: tuple[()] = ()


class SimulatedWorkers:
    """All interpreters of an engine in one object.

    Args:
        world: The simulated processes.
        simulated: Describes the results of compiled ops.
        events: Records the events.
        fake_values: Whether requests for values return zeros.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        simulated: Simulated,
        events: EventLog,
        fake_values: bool,
    ) -> None:
        self.world = world
        #: The time until which the program has been busy, in seconds.
        self.program_s = 0.0
        self._all = Region.row_major(["procs"], [world.size])
        self._simulated = simulated
        self._steps: dict[int, SimulatedStep] = {}
        self._engine: Engine | None = None
        self._number = 0
        self._since_s = 0.0
        events.call_site = self._call_site
        self.run = _SimulatedEndpoint(self._run)
        # With streams, the engine also passes the number of acknowledged operations.
        self.run_on_streams = _SimulatedEndpoint(lambda *args: self._run(*args[:-1]))
        self.stop = _SimulatedEndpoint(lambda: None)
        self.drop_held = _SimulatedEndpoint(lambda _: None)
        self.fetch = _SimulatedEndpoint(
            self._fetch if fake_values else _refusal("a value was requested")
        )
        self.item = _SimulatedEndpoint(self._item if fake_values else _refusal(_ITEM))
        self.describe = _SimulatedEndpoint(_refusal(_DESCRIBE))
        self.attempt = _SimulatedEndpoint(_refusal(_ATTEMPT))
        self.invoke = _SimulatedEndpoint(_refusal(_INVOKE))
        #: The same requests, for the values of a stream.
        self.query = _SimulatedEndpoint(self._query)

    def _with_region(self, region: Region) -> SimulatedWorkers:
        return self

    def begin(self, engine: Engine) -> None:
        """Set the engine."""
        self._engine = engine
        self._since_s = time.thread_time()

    def reset(self) -> None:
        """Reset the time of the program to zero."""
        self.program_s = 0.0
        self._since_s = time.thread_time()

    def _call_site(self) -> CallSite:
        assert self._engine is not None
        call_site = self._engine.stream.call_site_of(self._number)
        if self.world.within is not None and isinstance(call_site, TraceCallSite):
            return call_site.recorded[self.world.within]
        return call_site

    def _run(
        self,
        first: int,
        instructions: bytes,
        numbers: bytes,
        compiled_ops: list[CompiledOp | Eviction],
        given: list[Any],
        slots: int,
    ) -> dict[int, Any]:
        assert self._engine is not None
        self._advance(self._engine.stream.issued - first)
        values = self.world.values
        if slots > len(values):
            values.extend([None] * (slots - len(values) + _GROWTH))
        for compiled_op in compiled_ops:
            if isinstance(compiled_op, Eviction):
                for opcode in compiled_op.opcodes:
                    self._steps.pop(opcode, None)
                    self._simulated.pending.pop(opcode, None)
            elif compiled_op.kind == "replay":
                # Create the step now, while the compiled ops of its operations are still known.
                self._step(compiled_op.opcode)
        self.world.given = given
        code = array("I")
        code.frombytes(instructions)
        with _disable_current_modes():
            self._do(first, code.tolist())
        self._since_s = time.thread_time()
        return {}

    def _fetch(self, slot: int, rank: int) -> ValueMesh[Any]:
        kind = self.world.kind_at(slot)
        self._wait(self._all.select(procs=rank).encode())
        with _disable_current_modes():
            # `expand` avoids allocating memory for the full size.
            zeros = torch.zeros((), dtype=kind.dtype).expand(kind.shape)
        return ValueMesh(self._all, [zeros] * self.world.size)

    def _item(self, slot: int, ranks: bytes) -> ValueMesh[Any]:
        self._wait(ranks)
        with _disable_current_modes():
            zero = torch.zeros((), dtype=self.world.kind_at(slot).dtype).item()
        return ValueMesh(self._all, [zero] * self.world.size)

    def _query(self, stream: int, name: str, *args: Any) -> Any:
        answer: ValueMesh[Any] = getattr(self, name).broadcast(*args)
        return ValueMesh(self._all, map(_Reply, answer.values()))

    def _wait(self, ranks: bytes) -> None:
        """Let the program wait for processes."""
        answered_s = self.world.wait_s(ranks) + self.world.model.delivery_s
        self.program_s = max(self.program_s, answered_s)

    def _do(self, number: int, instructions: list[int]) -> None:
        steps, world = self._steps, self.world
        at, end = 0, len(instructions)
        while at < end:
            opcode = instructions[at]
            if opcode == FREE:
                world.free(instructions[at + 1])
                at += 2
                continue
            self._number = number
            at = (steps.get(opcode) or self._begun(opcode))(instructions, at + 1)
            number += 1

    def _begun(self, opcode: int) -> SimulatedStep:
        compiled_op, entry = self._simulated.pending.pop(opcode)
        step = self._steps[opcode] = step_of(compiled_op, entry, self.world, self._step)
        return step

    def _step(self, opcode: int) -> SimulatedStep:
        return self._steps.get(opcode) or self._begun(opcode)

    def _advance(self, operations: int) -> None:
        """Add the time that the program has needed to issue a batch."""
        issue_s = self.world.model.issue_s
        if issue_s is None:
            self.program_s += time.thread_time() - self._since_s
        else:
            self.program_s += operations * issue_s
        self.world.arrived_s = self.program_s + self.world.model.delivery_s


_ITEM = "a value was requested (by item(), or a condition on a tensor)"
_DESCRIBE = "an operation was called whose results depend on values"
_ATTEMPT = "a remote function without a propagation rule was called"
_INVOKE = "a remote function was called for its value"


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise NoValues(
            f"{what}, but simulated tensors have no values: leave it out of the simulation, give"
            " remote functions a rule with remote(propagate=...), or use zeros as values with"
            " Simulator(fake_values=True)"
        )

    return refuse
