"""Controllers: actors that exist once per job and that every process can find by name.

Controllers live in the process of the program. The agent of that process creates them and handles
one request at a time, so concurrent requests for the same name get the same actor.
"""

from __future__ import annotations

import threading
from typing import Any, ParamSpec, TypeVar

from mesh_core._calls.actor import Actor
from mesh_core._calls.task_future import AgentFuture
from mesh_core._core import Targets
from mesh_core._errors import ActorFailed
from mesh_core._meshes.actor_mesh import ActorMesh, check_class
from mesh_core._meshes.proc_mesh import this_proc
from mesh_core._meshes.spawn_checks import check_arguments, check_name_and_class
from mesh_core._runtime.runtime import runtime
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
    """Return the actor with this name in the job; spawn it first if it does not exist.

    The actor lives in the process of the program until the program ends. Only the first request for
    a name spawns the actor; the arguments of later requests are ignored.

    Args:
        name: The name of the controller, unique in the job.
        cls: The actor class.
        *args: Positional arguments of `__init__`.
        **kwargs: Keyword arguments of `__init__`.

    Returns:
        A future of a mesh of one actor. For the request that spawned the actor, it raises the
        exception that `__init__` raised. For later requests, it raises `ActorFailed` if the actor
        has failed.

    Raises:
        ValueError: The class does not derive from `Actor`.
        TypeError: The arguments do not match `__init__`, or cannot be pickled.
    """
    made: Any = cls
    check_name_and_class(name, made)
    check_class(made)
    check_arguments(made, args, kwargs)
    root = Targets([(proc_id(0, 0), 0)])
    reply = runtime().call_agents(root, "controller", name, made, args, kwargs)
    return AgentFuture(reply, this_proc(), "get_or_spawn_controller", is_value=True)


def answer_controller(
    message: Message, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Find or spawn a controller in this process, and reply once it is initialized."""
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
        # The request that spawned the actor gets the exception of `__init__`; later requests get an
        # `ActorFailed` with that exception as its cause.
        cause = error.__cause__ if is_new and isinstance(error, ActorFailed) else None
        engine.reply(message, RAISED, encode_exception(cause or error))
    else:
        engine.reply(message, 0, body, buffers)
