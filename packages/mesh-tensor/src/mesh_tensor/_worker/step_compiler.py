"""Compiled ops as the interpreter executes them: each is compiled once to a generated function.

A step receives the instructions and the position after its opcode, and returns the position
of the next operation. Values are stored in a list, by slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._instructions.compiled_op import CompiledOp, Number, Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._worker.world import World

    Step = Callable[[list[int], int], int]

__all__ = ["call_step", "call_text", "operator_of", "skip_step"]


#: Operations that return the values needed for their backward only if gradients are enabled. Values
#: in the processes do not require gradients.
_FOR_BACKWARD = {"aten.mkldnn_rnn_layer.default"}


def operator_of(name: str, module: str | None = None) -> Callable[..., Any]:
    """Return a PyTorch operation by name, such as `aten.add.Tensor`.

    Args:
        name: The name.
        module: The module that defines the operation, unless PyTorch does. It is imported if the
            operation is not yet known.

    Raises:
        AttributeError: The operation does not exist.
    """
    try:
        function = _found(name)
        return torch.enable_grad()(function) if name in _FOR_BACKWARD else function
    except AttributeError:
        if module is None:
            raise
    try:
        # Importing the module that defined the program's custom operation registers it here.
        __import__(module)
        return _found(name)
    except (ImportError, AttributeError) as error:
        raise AttributeError(
            f"no operation {name} in this process, and module {module!r} does not define it here: "
            "define it in a module that the processes can import"
        ) from error


def _found(name: str) -> Callable[..., Any]:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def skip_step(compiled_op: CompiledOp) -> Step:
    """Skip an operation of other processes."""
    rest_len = compiled_op.instruction_len - 1
    return lambda _, at: at + rest_len


def call_text(
    compiled_op: CompiledOp,
    function: str,
    names: dict[str, Any],
    operand: Callable[[int], str],
    number: Callable[[int], str],
) -> str:
    """Generate the call of a function with the arguments of a compiled op.

    Args:
        compiled_op: The compiled op.
        function: The name of the function in the generated code.
        names: The namespace of the generated code; constants among the arguments are added to it.
        operand: Returns the code for an operand.
        number: Returns the code for a float.
    """

    def text(argument: Any) -> str:
        if isinstance(argument, Operand):
            return operand(argument.index)
        if isinstance(argument, Number):
            return number(argument.index)
        if type(argument) is list:
            return "[" + ", ".join(map(text, argument)) + "]"
        if type(argument) is tuple:
            return "(" + "".join(f"{text(one)}, " for one in argument) + ")"
        if type(argument) is dict:
            return "{" + ", ".join(f"{key!r}: {text(one)}" for key, one in argument.items()) + "}"
        name = f"c{len(names)}"
        names[name] = argument
        return name

    arguments = [text(one) for one in compiled_op.args]
    arguments += [f"{name}={text(one)}" for name, one in compiled_op.kwargs.items()]
    return f"{function}({', '.join(arguments)})"


def call_step(compiled_op: CompiledOp, function: Callable[..., Any], world: World) -> Step:
    """Call a function with the operands, and store the results.

    Raises:
        TypeError: An argument is of a kind that cannot be written as code.
    """
    names: dict[str, Any] = {"function": function, "values": world.values, "world": world}
    call = call_text(
        compiled_op,
        "function",
        names,
        operand=lambda index: f"values[code[at + {index}]]" if index else "values[code[at]]",
        number=lambda index: f"world.numbers[code[at + {compiled_op.operands + index}]]",
    )
    first = compiled_op.operands + compiled_op.numbers
    lines = ["def step(code, at):"]
    if compiled_op.results == (None,):
        lines.append(f"    values[code[at + {first}]] = {call}")
    elif compiled_op.results:
        lines.append(f"    result = {call}")
        for index, path in enumerate(compiled_op.results):
            part = "".join(f"[{place}]" for place in path or ())
            lines.append(f"    values[code[at + {first + index}]] = result{part}")
    else:
        lines.append(f"    {call}")
    lines.append(f"    return at + {compiled_op.instruction_len - 1}")
    exec("\n".join(lines), names)
    step: Step = names["step"]
    return step
