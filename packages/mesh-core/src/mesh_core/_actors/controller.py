"""Controllers: actors that there is one of in the job, found by name from anywhere.

They live in the process of the program. Its agent makes them, one request after the other, so who
asks first and who asks at the same time get the same actor.
"""

from __future__ import annotations

import threading
from typing import Any, ParamSpec, TypeVar

from mesh_core._actors.actor import Actor
from mesh_core._calls.task_future import AgentFuture
from mesh_core._core import Targets
from mesh_core._errors import ActorFailed
from mesh_core._meshes.actor_mesh import ActorMesh, check_class
from mesh_core._meshes.mesh import this_proc
from mesh_core._meshes.spawn_checks import check_arguments
from mesh_core._program.runtime import runtime
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import RAISED, proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._calls.future import Future
    from mesh_core._core import Message

__all__ = ["answer_controller", "get_or_spawn_controller"]

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")


def get_or_spawn_controller(
    name: str, cls: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs
) -> Future[A]:
    """Gives the one actor of this name in the job, spawning it first if there is none.

    It lives in the process of the program until that ends. Arguments count for who comes first.

    Args:
        name: What everybody calls it.
        cls: Its class.
        *args: Arguments of its `__init__`.
        **kwargs: Arguments of its `__init__` by keyword.

    Returns:
        A future of a mesh of one. It raises what `__init__` raised; for those who come after an
        actor that has failed, `ActorFailed`.

    Raises:
        ValueError: The class is no `Actor`.
        TypeError: The arguments do not fit `__init__`, or cannot be pickled.
    """
    made: Any = cls
    check_class(made)
    check_arguments(made, args, kwargs)
    root = Targets([(proc_id(0, 0), 0)])
    reply = runtime().call_agents(root, "controller", name, made, args, kwargs)
    return AgentFuture(reply, this_proc(), "get_or_spawn_controller", is_value=True)


def answer_controller(
    message: Message, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Finds or spawns a controller in this process, and answers when it is known to be well."""
    controllers = runtime().controllers
    mesh = controllers.get(name)
    is_new = mesh is None
    if mesh is None:
        spawn: Any = this_proc().spawn
        mesh = controllers[name] = spawn(name, cls, *args, **kwargs)
    work = threading.Thread(
        target=_answer, args=(message, mesh, is_new), name=f"mesh-controller-{name}", daemon=True
    )
    work.start()


def _answer(message: Message, mesh: ActorMesh[Any], is_new: bool) -> None:
    engine = runtime().engine
    try:
        mesh.initialized.get()
        body, buffers = encode_value(mesh, 1 << 60)
    except Exception as error:
        # Who spawns it hears what `__init__` raised; who comes later, that it has failed of that.
        cause = error.__cause__ if is_new and isinstance(error, ActorFailed) else None
        engine.answer(message, RAISED, encode_exception(cause or error))
    else:
        engine.answer(message, 0, body, buffers)
