"""Replacement of actor classes for tests, in every process of the job."""

from __future__ import annotations

from contextlib import contextmanager

from mesh_core._core import Targets
from mesh_core._runtime.late_reply import reply_from_thread
from mesh_core._runtime.runtime import is_running, runtime
from mesh_core._serialization.classes import find_pickled_class
from mesh_core._serialization.pickler import decode, encode_value, is_importable
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

    # Pickled classes by the key of the class that each of them replaces.
    Patches = dict[str, bytes]

__all__ = ["inherit_patches", "patch_actor", "patch_host", "patches_here", "replacement_of"]

_replacements: dict[type, type] = {}
# The replacements of the program, as known in the program and in every other process.
_patches: Patches = {}
# The replacements that were unpickled in this process.
_loaded: dict[bytes, type] = {}


@contextmanager
def patch_actor(original: type, mock: type) -> Iterator[type]:
    """Spawn `mock` wherever the program or one of its actors spawns `original`.

    The patch applies in every process of the job while the block runs; actors that were spawned
    before keep their class. It also works as a decorator.

    Args:
        original: The class that the code under test spawns.
        mock: The class to spawn instead; usually derived from `original`.

    Raises:
        RuntimeError: The caller is an actor in another process instead of the program.
        TypeError: `mock` cannot be pickled.
    """
    if is_running() and not runtime().is_root:
        raise RuntimeError(
            "patch_actor applies to the whole job: call it in the program, not in an actor"
        )
    before, key = _replacements.get(original), _key_of(original)
    _replace(original, key, mock)
    try:
        _share_patches()
        yield mock
    finally:
        _replace(original, key, before)
        _share_patches()


def replacement_of(cls: type) -> type:
    """Return the class to spawn instead of a class."""
    if cls in _replacements:
        return _replacements[cls]
    if not _patches or runtime().is_root:
        return cls
    pickled = _patches.get(_key_of(cls))
    if pickled is None:
        return cls
    if pickled not in _loaded:
        _loaded[pickled] = decode(pickled)
    return _loaded[pickled]


def patches_here() -> Patches:
    """Return the replacements of the program; they are passed to each process that starts."""
    return dict(_patches)


def inherit_patches(patches: Patches) -> None:
    """Adopt the replacements of the program in a process of its job."""
    global _patches
    _patches = patches
    _loaded.clear()


def patch_host(current: Runtime, patches: Patches, message: Message) -> None:
    """Send replacements to all processes of this host, and reply when they have them."""
    agent = current.host_agent
    assert agent is not None
    slots = agent.living()

    def share() -> None:
        for reply in [_call(current, current.identity.host, slot, patches) for slot in slots]:
            current.engine.wait(reply, None)

    reply_from_thread(current, message, "mesh-patch", share)


def _replace(original: type, key: str, mock: type | None) -> None:
    global _patches
    others = {other: pickled for other, pickled in _patches.items() if other != key}
    if mock is None:
        del _replacements[original]
        _patches = others
    else:
        _patches = {**others, key: encode_value(mock, 1 << 60)[0]}
        _replacements[original] = mock


def _share_patches() -> None:
    """Send the replacements to all processes of the job, and wait until they have them."""
    if not is_running():
        return
    current = runtime()
    hosts = [current.identity.host, *current.places.living()]
    for reply in [_call(current, host, 0, _patches) for host in hosts]:
        # If a process dies before that, the wait ends with an error, and the process spawns
        # nothing.
        current.engine.wait(reply, None)


def _call(current: Runtime, host: int, slot: int, patches: Patches) -> int:
    return current.call_agents(Targets([(proc_id(host, slot), 0)]), "patch", patches)


def _key_of(cls: type) -> str:
    """Return the identity of a class in all processes: its import path or the key of its parcel."""
    if is_importable(cls):
        return f"{cls.__module__}.{cls.__qualname__}"
    pickled = find_pickled_class(cls)
    if pickled is None:
        encode_value(cls, 1 << 60)
        pickled = find_pickled_class(cls)
    return f"{cls.__module__}.{cls.__name__}" if pickled is None else pickled.key.hex()
