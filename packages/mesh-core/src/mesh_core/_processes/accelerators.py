"""The accelerators of this host, and the variables that restrict a process to some of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Accelerator(NamedTuple):
    """A device that a process can be restricted to."""

    name: str
    """Its index or identifier in the variable of its vendor."""
    memory_node: int | None = None
    """The memory node that it is attached to, if known."""


class Accelerators(NamedTuple):
    """The accelerators that processes of this host may use, in the order of the vendor."""

    devices: tuple[Accelerator, ...]
    variable: str = ""
    """The environment variable that selects devices."""
    settings: Mapping[str, str] = {}
    """Variables that determine the meaning of the indexes."""

    def selecting(self, names: Sequence[str]) -> dict[str, str]:
        """Return the variables that restrict a process to the named devices."""
        return {**self.settings, self.variable: ",".join(names)} if self.variable else {}


class _Vendor(NamedTuple):
    variable: str
    settings: Mapping[str, str]
    find: Callable[[Path], list[Accelerator]]


def find_accelerators(environment: Mapping[str, str], root: Path = ROOT) -> Accelerators:
    """Find the accelerators without loading a driver library.

    Args:
        environment: The variables of the host. If they list devices, as in the step of a scheduler,
            these are the devices, even if the system does not show them.
        root: The root of the file system, for tests.
    """
    for vendor in _VENDORS:
        found = vendor.find(root)
        listed = environment.get(vendor.variable)
        if listed is not None:
            found = [_of_name(name.strip(), found) for name in listed.split(",") if name.strip()]
        if found:
            return Accelerators(tuple(found), vendor.variable, vendor.settings)
    return Accelerators(())


def _of_name(name: str, found: Sequence[Accelerator]) -> Accelerator:
    index = int(name) if name.isdecimal() else len(found)
    return Accelerator(name, found[index].memory_node if index < len(found) else None)


def _find_nvidia(root: Path) -> list[Accelerator]:
    """Find NVIDIA devices in the order of their PCI addresses."""
    nodes = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        minor = re.search(r"Device Minor:\s*(\d+)", _text(folder / "information"))
        # A container sees the information of all devices, but only the device files assigned to it.
        if minor and (root / f"dev/nvidia{minor[1]}").exists():
            nodes.append(_memory_node(root, folder.name))
    return _numbered(nodes)


def _find_amd(root: Path) -> list[Accelerator]:
    """Find AMD devices in the order of the nodes of the kernel driver."""
    nodes = []
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for folder in sorted(folders, key=lambda path: int(path.name)):
        listed = re.findall(r"^(\w+) (\d+)$", _text(folder / "properties"), re.MULTILINE)
        properties = {name: int(value) for name, value in listed}
        if properties.get("simd_count"):
            at, domain = properties.get("location_id", 0), properties.get("domain", 0)
            address = f"{domain:04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"
            nodes.append(_memory_node(root, address))
    return _numbered(nodes)


def _find_ascend(root: Path) -> list[Accelerator]:
    numbers = (path.name.removeprefix("davinci") for path in (root / "dev").glob("davinci[0-9]*"))
    return [Accelerator(number) for number in sorted(numbers, key=int)]


_VENDORS = (
    _Vendor("CUDA_VISIBLE_DEVICES", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, _find_nvidia),
    _Vendor("ROCR_VISIBLE_DEVICES", {}, _find_amd),
    _Vendor("ASCEND_RT_VISIBLE_DEVICES", {}, _find_ascend),
)


def _numbered(nodes: Sequence[int | None]) -> list[Accelerator]:
    return [Accelerator(str(index), node) for index, node in enumerate(nodes)]


def _memory_node(root: Path, address: str) -> int | None:
    """Return the memory node of a PCI device; None if the machine has only one."""
    listed = _text(root / "sys/bus/pci/devices" / address.lower() / "numa_node").strip()
    return int(listed) if listed.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
