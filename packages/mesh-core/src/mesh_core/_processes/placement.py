"""The share of a process in the processors, memory nodes and accelerators of its host."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from mesh_core._processes.accelerators import Accelerators, find_accelerators
from mesh_core._processes.binding import host_nodes, node_cpus

AUTO = "auto"


class Hardware(NamedTuple):
    """The hardware that the processes of a host share."""

    cpus: frozenset[int]
    """The processors that the host may use."""
    cpus_of_node: Mapping[int, frozenset[int]]
    accelerators: Accelerators


def hardware_here() -> Hardware:
    """Return the hardware of this host."""
    nodes = {node: node_cpus(node) for node in sorted(host_nodes())}
    return Hardware(frozenset(os.sched_getaffinity(0)), nodes, find_accelerators(os.environ))


def resolve(words: Mapping[str, str], index: int, count: int, hardware: Hardware) -> dict[str, str]:
    """Replace each `auto` of a binding by the share of one process.

    Accelerators are divided evenly. A process gets the memory nodes of its accelerators, or else an
    even share of the nodes. The processors of these nodes are divided among the processes that use
    them.

    Args:
        words: The binding, as for `parse_binding`.
        index: The number of the process on its host.
        count: The number of processes that share the host.
        hardware: The hardware that they share.

    Raises:
        ValueError: The accelerators cannot be divided evenly.
    """
    resolved = dict(words)
    devices = hardware.accelerators.devices
    if words.get("gpus") == AUTO:
        share = _device_share(len(devices), index, count)
        resolved["gpus"] = ",".join(devices[at].name for at in share)
    uses_devices = "gpus" in words
    nodes = [_nodes(hardware, number, count, uses_devices) for number in range(count)]
    for key in ("cpunodebind", "membind"):
        if words.get(key) == AUTO:
            resolved[key] = ",".join(map(str, nodes[index]))
    if words.get("cpus") == AUTO:
        sharers = [number for number in range(count) if nodes[number] == nodes[index]]
        resolved["cpus"] = _cpu_share(hardware, nodes[index], sharers.index(index), len(sharers))
    return resolved


def _device_share(device_count: int, index: int, count: int) -> range:
    if device_count % count and device_count:
        raise ValueError(
            f"gpus 'auto' cannot divide {device_count} devices among {count} processes of a host: "
            "spawn a divisor of that number, or list the devices of each process in proc_bind"
        )
    size = device_count // count
    return range(index * size, (index + 1) * size)


def _nodes(hardware: Hardware, index: int, count: int, uses_devices: bool) -> list[int]:
    every = list(hardware.cpus_of_node)
    devices = hardware.accelerators.devices
    if uses_devices and devices and len(devices) % count == 0:
        share = (devices[at].memory_node for at in _device_share(len(devices), index, count))
        near = {node for node in share if node in hardware.cpus_of_node}
        if near:
            return sorted(node for node in near if node is not None)
    if count >= len(every):
        return [every[index * len(every) // count]]
    return every[index * len(every) // count : (index + 1) * len(every) // count]


def _cpu_share(hardware: Hardware, nodes: list[int], index: int, count: int) -> str:
    near = frozenset[int]().union(*(hardware.cpus_of_node[node] for node in nodes))
    cpus = sorted(near & hardware.cpus) or sorted(hardware.cpus)
    if count > len(cpus):
        return str(cpus[index % len(cpus)])
    share = cpus[index * len(cpus) // count : (index + 1) * len(cpus) // count]
    return ",".join(map(str, share))
