"""Binding of a process to processors, memory nodes and accelerators.

The options for processors and memory nodes have the names of numactl.
"""

import ctypes
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mesh_core._processes.accelerators import find_accelerators

_NODES = Path("/sys/devices/system/node")
_KEYS = ("cpunodebind", "membind", "physcpubind", "cpus", "gpus")
_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 269}
_NODE_COUNT_MAX = 1024


class Binding(NamedTuple):
    """The hardware that a process may use; None means no restriction."""

    cpus: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None
    device_variables: Mapping[str, str] = {}
    """Environment variables that restrict the accelerators."""


def parse_binding(words: Mapping[str, str] | None) -> Binding:
    """Parse a binding and check it against this host.

    Args:
        words: `cpunodebind` and `membind` list memory nodes, `physcpubind` and `cpus` list
            processors, and `gpus` lists accelerators, each in the form `"0-3,8"` or `"all"`.
            Several restrictions of processors intersect.

    Raises:
        ValueError: A key or list is malformed, or the host lacks a listed processor, node or
            accelerator.
    """
    cpus: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None
    device_variables: Mapping[str, str] = {}
    for key, listed in (words or {}).items():
        if key not in _KEYS:
            raise ValueError(f"unknown binding {key!r}: use one of {', '.join(_KEYS)}")
        if key == "gpus":
            device_variables = _select_devices(listed)
            continue
        if key == "membind":
            memory_nodes = _parse_list(key, listed, host_nodes())
            continue
        if key == "cpunodebind":
            nodes = _parse_list(key, listed, host_nodes())
            allowed = frozenset().union(*(node_cpus(node) for node in nodes))
        else:
            allowed = _parse_list(key, listed, frozenset(range(os.cpu_count() or 1)))
        cpus = allowed if cpus is None else cpus & allowed
    if cpus is not None and not cpus:
        raise ValueError("binding leaves no processor: cpunodebind and physcpubind do not overlap")
    return Binding(cpus, memory_nodes, device_variables)


def _select_devices(listed: str) -> dict[str, str]:
    """Return the variables for a list of accelerators; identifiers may replace the indexes."""
    found = find_accelerators(os.environ)
    names = [device.name for device in found.devices]
    if listed == "all":
        return {}
    wanted = [part.strip() for part in str(listed).split(",") if part.strip()]
    if all(part in names for part in wanted):
        return found.selecting(wanted)
    if not all(name.isdecimal() for name in names):
        has = ", ".join(names)
        raise ValueError(f"gpus {listed!r} is not on this host: it has {has}")
    numbers = _parse_list("gpus", listed, frozenset(map(int, names)))
    return found.selecting([str(number) for number in sorted(numbers)])


def bind(cpus: frozenset[int] | None, memory_nodes: frozenset[int] | None) -> None:
    """Bind the calling process; processes that it starts later inherit the binding.

    Raises:
        OSError: The kernel refuses the binding, as in some containers.
    """
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            why = f"cannot bind to processors {sorted(cpus)}: {error.strerror}"
            raise OSError(error.errno, why) from error
    if memory_nodes is not None:
        _bind_memory(memory_nodes)


def _bind_memory(nodes: frozenset[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(0, f"cannot bind memory on {platform.machine()}: leave membind out")
    bits_per_word = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_NODE_COUNT_MAX // bits_per_word))()
    for node in nodes:
        mask[node // bits_per_word] |= 1 << node % bits_per_word
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, mask, ctypes.c_ulong(_NODE_COUNT_MAX)) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"cannot bind memory to nodes {sorted(nodes)}: {os.strerror(errno)}")


def _parse_list(key: str, listed: str, known: frozenset[int]) -> frozenset[int]:
    """Parse a list such as `0-3,8`."""
    if listed == "all":
        return known
    wanted: set[int] = set()
    for part in str(listed).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"malformed {key} {listed!r}: write a list such as '0-3,8'")
        wanted.update(range(int(first), int(last or first) + 1))
    if not wanted or not wanted <= known:
        has = ", ".join(map(str, sorted(known))) or "none"
        raise ValueError(f"{key} {listed!r} is not on this host: it has {has}")
    return frozenset(wanted)


def host_nodes() -> frozenset[int]:
    """Return the memory nodes; a kernel without NUMA has only node 0."""
    nodes = {int(path.name[4:]) for path in _NODES.glob("node[0-9]*")}
    return frozenset(nodes or {0})


def node_cpus(node: int) -> frozenset[int]:
    every = frozenset(range(os.cpu_count() or 1))
    try:
        listed = (_NODES / f"node{node}" / "cpulist").read_text().strip()
    except FileNotFoundError:
        return every
    return _parse_list("cpulist", listed, every) if listed else frozenset()
