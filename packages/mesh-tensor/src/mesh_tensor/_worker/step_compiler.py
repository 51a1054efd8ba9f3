"""Plans as the interpreter runs them: a function for each, written for it and compiled once.

A step gets the words and where its own begin behind the plan's number, and gives where the next
operation begins. The values live in a list, by slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._library import custom_ops

from mesh_tensor._engine.plan import Number, Operand, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._worker.world import World

    Step = Callable[[list[int], int], int]

__all__ = ["call_step", "call_text", "module_of", "operator_of", "skip_step"]


#: These give what their gradients need only where gradients are on; the values have none here.
_FOR_BACKWARD = {"aten.mkldnn_rnn_layer.default"}


def operator_of(name: str, module: str | None = None) -> Callable[..., Any]:
    """Finds an operation of torch, as `aten.add.Tensor`.

    Args:
        name: Its name.
        module: What defines it, if that is not torch itself: imported if it is not yet known.

    Raises:
        AttributeError: There is none.
    """
    try:
        function = _found(name)
        return torch.enable_grad()(function) if name in _FOR_BACKWARD else function
    except AttributeError:
        if module is None:
            raise
    try:
        # By name, as the program's custom operation was defined in it.
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


def module_of(func: Any) -> str | None:
    """Says which module defines an operation that is not one of torch's own."""
    if func.namespace in ("aten", "prims"):
        return None
    definition = custom_ops.OPDEFS.get(f"{func._schema.name}")
    if definition is None:
        return None
    name: str | None = getattr(definition._init_fn, "__module__", None)
    return name


def skip_step(plan: Plan) -> Step:
    """Passes over an operation of others."""
    words = plan.words - 1
    return lambda _, at: at + words


def call_text(
    plan: Plan,
    function: str,
    names: dict[str, Any],
    operand: Callable[[int], str],
    number: Callable[[int], str],
) -> str:
    """Writes down the call of a function with the arguments that a plan says.

    Args:
        plan: The plan.
        function: What the function is called there.
        names: Gets the constants among the arguments, by the names they have there.
        operand: Writes down an operand.
        number: Writes down a float.
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

    arguments = [text(one) for one in plan.args]
    arguments += [f"{name}={text(one)}" for name, one in plan.kwargs.items()]
    return f"{function}({', '.join(arguments)})"


def call_step(plan: Plan, function: Callable[..., Any], world: World) -> Step:
    """Calls a function with the operands, and keeps the results.

    Raises:
        TypeError: An argument is of a kind that cannot be written down.
    """
    names: dict[str, Any] = {"function": function, "values": world.values, "world": world}
    call = call_text(
        plan,
        "function",
        names,
        operand=lambda index: f"values[w[at + {index}]]" if index else "values[w[at]]",
        number=lambda index: f"world.numbers[w[at + {plan.operands + index}]]",
    )
    first = plan.operands + plan.numbers
    lines = ["def step(w, at):"]
    if plan.results == (None,):
        lines.append(f"    values[w[at + {first}]] = {call}")
    elif plan.results:
        lines.append(f"    result = {call}")
        for index, path in enumerate(plan.results):
            part = "".join(f"[{place}]" for place in path or ())
            lines.append(f"    values[w[at + {first + index}]] = result{part}")
    else:
        lines.append(f"    {call}")
    lines.append(f"    return at + {plan.words - 1}")
    exec("\n".join(lines), names)
    step: Step = names["step"]
    return step
