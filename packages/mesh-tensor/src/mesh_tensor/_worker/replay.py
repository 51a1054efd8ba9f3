"""Traces in a process: each is one function of generated straight-line code.

If an operation fails, the remaining operations run one by one, as without a trace: everything that
does not depend on the failure is computed, and no process is left waiting in a collective.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from mesh_tensor._trace.op_sequence import encode_op, last_uses
from mesh_tensor._worker.failure import FailedValue, TraceFailed
from mesh_tensor._worker.runner import Runner
from mesh_tensor._worker.step_compiler import call_text, operator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._trace.op_sequence import OpSequence, TracedOp
    from mesh_tensor._worker.failure import Failure
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["replay_step"]

_FILE = "<a trace of mesh_tensor>"


def replay_step(
    compiled_op: CompiledOp, world: World, kinds: Mapping[str, Callable[[CompiledOp, World], Step]]
) -> Step:
    """Execute the operations of a trace and store its results."""
    replay = _Replay(compiled_op.detail, world, kinds)
    values, operands, rest_len = world.values, compiled_op.operands, compiled_op.instruction_len - 1

    def step(code: list[int], at: int) -> int:
        given = [values[slot] for slot in code[at : at + operands]]
        for slot, result in zip(
            code[at + operands : at + rest_len], replay.run(given), strict=True
        ):
            values[slot] = result
        return at + rest_len

    return step


class _Replay:
    """A trace as one process runs it: without operations of other processes.

    Args:
        body: The trace.
        world: The world of the process.
        kinds: For each kind of compiled op, the function that compiles a step for it.
    """

    def __init__(
        self,
        body: OpSequence,
        world: World,
        kinds: Mapping[str, Callable[[CompiledOp, World], Step]],
    ) -> None:
        self._body = body
        self._values: list[Any] = [None] * body.values
        given: list[Any] = []
        numbers = array("d")
        inner = world.for_trace(self._values, given, numbers)
        self._failures: list[Failure] = []
        self._runner = Runner(inner, self._failures.append, kinds)
        for compiled_op in body.compiled_ops:
            self._runner.define(compiled_op)
        self._ops = [op for op in body.ops if world.is_in(body.compiled_ops[op.compiled_op].ranks)]
        #: The position of the first integer of each operation.
        self._starts: list[int] = []
        self._instructions: list[int] = []
        for op in self._ops:
            self._starts.append(len(self._instructions))
            self._instructions += encode_op(body.compiled_ops[op.compiled_op], op, given, numbers)
        #: The operation of each line of the generated function.
        self._line_ops: list[int] = []
        self._function = self._compiled()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the trace; return the results.

        Raises:
            TraceFailed: An operation has failed. All operations that do not depend on it were
                executed.
        """
        if not any(isinstance(one, FailedValue) for one in inputs):
            try:
                results: Sequence[Any] = self._function(*inputs)
                return results
            except Exception as error:
                failed = self._save_frame(error)
        else:
            failed = None
            for number, value in zip(self._body.inputs, inputs, strict=True):
                self._values[number] = value
        try:
            self._run_remaining(failed)
        finally:
            self._values[:] = [None] * len(self._values)
        failures = self._failures[:]
        self._failures.clear()
        raise TraceFailed(failures)

    def _run_remaining(self, failed: tuple[int, Exception] | None) -> None:
        """Execute the operations after the failed one, or all operations if `failed` is None."""
        if failed is None:
            self._runner.run(0, self._instructions)
            return
        index, error = failed
        at = self._starts[index]
        at = self._runner.mark_failed(
            index, self._instructions[at], self._instructions, at + 1, error
        )
        self._runner.run(index + 1, self._instructions[at:])

    def _save_frame(self, error: Exception) -> tuple[int, Exception]:
        """Save the values of the interrupted function; return the index of the failed operation."""
        trace: TracebackType | None = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        if trace is None:
            raise error
        for name, value in trace.tb_frame.f_locals.items():
            if name.startswith("v"):
                self._values[int(name[1:])] = value
        line = trace.tb_lineno
        trace.tb_frame.clear()
        return self._line_ops[line - 1], error

    def _compiled(self) -> Any:
        """Generate the function. Each of its lines belongs to one operation."""
        body = self._body
        names: dict[str, Any] = {"V": self._values, "W": self._instructions}
        lines = [f"def run({', '.join(f'v{one}' for one in body.inputs)}):"]
        self._line_ops = [0]
        #: Results of other processes' operations, which the code also refers to.
        elsewhere = {one for op in body.ops for one in op.results}
        elsewhere -= {one for op in self._ops for one in op.results}
        if elsewhere:
            lines.append("    " + " = ".join(f"v{one}" for one in sorted(elsewhere)) + " = None")
            self._line_ops.append(0)
        dying = last_uses(self._ops, body)
        for index, op in enumerate(self._ops):
            compiled_op = body.compiled_ops[op.compiled_op]
            if compiled_op.kind == "op":
                written = _op_lines(compiled_op, op, names)
            else:
                names[f"s{op.compiled_op}"] = self._runner.step_of(compiled_op.opcode)
                written = _step_lines(compiled_op, op, self._starts[index])
            if dying[index]:
                written.append("del " + ", ".join(f"v{one}" for one in dying[index]))
            lines += ["    " + line for line in written]
            self._line_ops += [index] * len(written)
        lines.append(f"    return ({''.join(f'v{one}, ' for one in body.results)})")
        exec(compile("\n".join(lines), _FILE, "exec"), names)
        return names["run"]


def _op_lines(compiled_op: CompiledOp, op: TracedOp, names: dict[str, Any]) -> list[str]:
    """Generate code for a PyTorch operation."""
    function = f"f{op.compiled_op}"
    if function not in names:
        names[function] = operator_of(compiled_op.name, compiled_op.detail)

    def number(index: int) -> str:
        # Floats are passed by name, because not every float has a literal.
        name = f"c{len(names)}"
        names[name] = op.numbers[index]
        return name

    call = call_text(compiled_op, function, names, lambda at: f"v{op.operands[at]}", number)
    if compiled_op.results == (None,):
        return [f"v{op.results[0]} = {call}"]
    if not compiled_op.results:
        return [call]
    lines = [f"r = {call}"]
    for result, path in zip(op.results, compiled_op.results, strict=True):
        lines.append(f"v{result} = r" + "".join(f"[{place}]" for place in path or ()))
    return [*lines, "del r"]


def _step_lines(compiled_op: CompiledOp, op: TracedOp, start: int) -> list[str]:
    """Generate code for any other operation: its step reads and writes the list of values."""
    there = [*dict.fromkeys(op.operands)] if compiled_op.kind != "put" else []
    lines = [f"V[{one}] = v{one}" for one in there]
    lines.append(f"s{op.compiled_op}(W, {start + 1})")
    lines += [f"v{one} = V[{one}]" for one in op.results]
    used = [*there, *op.results]
    if used:
        lines.append(" = ".join(f"V[{one}]" for one in used) + " = None")
    return lines
