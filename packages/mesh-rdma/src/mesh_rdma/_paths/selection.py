"""Selection of the transport for a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_rdma._cuda.driver import cuda_driver
from mesh_rdma._errors import RDMAError, RDMAPeerDied, RDMAReleased, RDMATransportError
from mesh_rdma._paths.path import Path
from mesh_rdma._plugins.registry import Loaded, transport, transports
from mesh_rdma._plugins.target import PluginTarget, plugin_target
from mesh_rdma._staged.messages import STAGED
from mesh_rdma._staged.target import DeviceBuffer, StagedTarget

if TYPE_CHECKING:
    from mesh_rdma import _core

__all__ = ["LEVELS", "Path", "path_to"]

#: The built-in transports with their levels, best first; plug-ins have levels in between.
LEVELS = {"memory": 0, "arena": 10, "attach": 20, "unix": 40, "tcp": 50}

_IN_HOST_MEMORY = "the buffer is not in device memory"


def path_to(handle: _core.Handle, name: str | None = None) -> Path:
    """Find the best path to a buffer, or the path by the named transport.

    Raises:
        RDMAPeerDied: The owner has died.
        RDMATransportError: No transport reaches the buffer, or the named one does not.
    """
    if name is not None and name not in LEVELS:
        return _staged_path(handle) if name == STAGED else _plugin_path(handle, name)
    target, refused = handle.select_target(name)
    if target is None and handle.is_on_device and name is None:
        return _device_path(handle, refused)
    if target is None:
        raise _unreachable(handle, refused)
    path = Path(target, refused, handle.owner, target)
    if name is None:
        path = _better_plugin(handle, path, target)
        path.refused.append((STAGED, "it is for memory of devices, on either side"))
    return path


def _better_plugin(handle: _core.Handle, path: Path, built_in: _core.Target) -> Path:
    """Select a plug-in if one is better than the best built-in transport."""
    selected = path
    for loaded in sorted(transports(), key=_level):
        if loaded.transport is None:
            selected.refused.append((loaded.name, loaded.refusal or "it cannot be used"))
        elif not loaded.transport.reaches_host:
            selected.refused.append((loaded.name, _IN_HOST_MEMORY))
        elif selected is not path or _level(loaded) > LEVELS[built_in.transport]:
            selected.refused.append((loaded.name, "a better one is used"))
        else:
            target = _try(loaded, handle, built_in, selected.refused)
            if target is not None:
                refused = [(built_in.transport, "a better one is used"), *path.refused]
                selected = Path(target, refused, handle.owner, built_in)
    return selected


def _device_path(handle: _core.Handle, refused: list[tuple[str, str]]) -> Path:
    """Select the best transport for device memory."""
    anchor = DeviceBuffer(handle)
    selected: PluginTarget | StagedTarget | None = None
    for loaded in sorted(transports(), key=_level):
        if loaded.transport is None:
            refused.append((loaded.name, loaded.refusal or "it cannot be used"))
        elif not loaded.transport.reaches_devices:
            refused.append((loaded.name, "it does not support device memory"))
        elif selected is not None:
            refused.append((loaded.name, "a better one is used"))
        else:
            selected = _try(loaded, handle, anchor, refused)
    if selected is not None:
        refused.append((STAGED, "a better one is used"))
    else:
        try:
            anchor.check()
            selected = StagedTarget(anchor)
        except (RDMAPeerDied, RDMAReleased):
            raise
        except RDMAError as error:
            refused.append((STAGED, str(error)))
            raise _unreachable(handle, refused) from error
    return Path(selected, refused, handle.owner)


def _try(
    loaded: Loaded,
    handle: _core.Handle,
    fallback: _core.Target | DeviceBuffer,
    refused: list[tuple[str, str]],
) -> PluginTarget | None:
    """Reach a buffer by a plug-in, or record in `refused` why that failed."""
    try:
        return plugin_target(loaded, handle, fallback)
    except RDMAPeerDied:
        raise
    except RDMAError as error:
        refused.append((loaded.name, str(error)))
        return None


def _plugin_path(handle: _core.Handle, name: str) -> Path:
    loaded = transport(name)
    if loaded is None:
        known = ", ".join([*LEVELS, STAGED, *(one.name for one in transports())])
        raise RDMATransportError(f"no transport is named {name!r}, there are {known}")
    if loaded.transport is None:
        raise RDMATransportError(f"{name} cannot be used here: {loaded.refusal}")
    if handle.is_on_device:
        if not loaded.transport.reaches_devices:
            raise RDMATransportError(f"{name} does not support device memory")
        return Path(plugin_target(loaded, handle, DeviceBuffer(handle)), [], handle.owner)
    if not loaded.transport.reaches_host:
        # The death of the owner takes precedence over this error.
        handle.check()
        raise RDMATransportError(f"{name} cannot be used for this buffer: {_IN_HOST_MEMORY}")
    fallback, _ = handle.select_target(None)
    return Path(plugin_target(loaded, handle, fallback), [], handle.owner, fallback)


def _staged_path(handle: _core.Handle) -> Path:
    if handle.is_on_device:
        anchor = DeviceBuffer(handle)
        anchor.check()
        return Path(StagedTarget(anchor), [], handle.owner)
    target, refused = handle.select_target(None)
    if target is None:
        raise _unreachable(handle, refused)
    if cuda_driver() is None:
        raise RDMATransportError(
            f"{STAGED} cannot be used: no side is in memory of a device, as far as can be seen here"
        )
    return Path(StagedTarget(target), [], handle.owner, target)


def _unreachable(handle: _core.Handle, refused: list[tuple[str, str]]) -> RDMATransportError:
    reasons = "; ".join(f"{one}: {why}" for one, why in refused)
    return RDMATransportError(f"no transport to {handle.owner}: {reasons}")


def _level(loaded: Loaded) -> int:
    return 0 if loaded.transport is None else loaded.transport.level
