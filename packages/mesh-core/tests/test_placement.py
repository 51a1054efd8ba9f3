"""Each process of a host gets its share of the processors, memory nodes and accelerators."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, endpoint, this_host
from mesh_core._processes.accelerators import Accelerator, Accelerators, find_accelerators
from mesh_core._processes.placement import Hardware, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LIMIT_S = 30.0
CPUS = sorted(os.sched_getaffinity(0))


class Peek(Actor):
    @endpoint
    def variables(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def processors(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def nvidia(root: Path, devices: Mapping[str, tuple[int, int]]) -> None:
    """Create the files of NVIDIA devices: the minor number and memory node of each PCI address."""
    for address, (minor, node) in devices.items():
        information = f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n"
        write(
            root,
            {
                f"proc/driver/nvidia/gpus/{address}/information": information,
                f"sys/bus/pci/devices/{address}/numa_node": f"{node}\n",
                f"dev/nvidia{minor}": "",
            },
        )


def test_nvidia_devices_are_numbered_by_their_pci_address(tmp_path: Path) -> None:
    nvidia(tmp_path, {"0000:9b:00.0": (0, 1), "0000:1a:00.0": (1, 0)})
    found = find_accelerators({}, tmp_path)
    assert found.devices == (Accelerator("0", 0), Accelerator("1", 1))
    assert found.selecting(["1"]) == {
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_devices_missing_in_the_container_are_not_counted(tmp_path: Path) -> None:
    nvidia(tmp_path, {"0000:1a:00.0": (0, 0), "0000:9b:00.0": (1, 1)})
    (tmp_path / "dev/nvidia0").unlink()
    assert find_accelerators({}, tmp_path).devices == (Accelerator("0", 1),)


def test_devices_selected_by_a_scheduler_are_used(tmp_path: Path) -> None:
    nvidia(tmp_path, {f"0000:{bus}:00.0": (n, n // 2) for n, bus in enumerate(("1a", "1b", "9a"))})
    chosen = find_accelerators({"CUDA_VISIBLE_DEVICES": "2,0"}, tmp_path)
    assert chosen.devices == (Accelerator("2", 1), Accelerator("0", 0))
    hidden = find_accelerators({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
    assert hidden.devices == ()
    named = find_accelerators({"CUDA_VISIBLE_DEVICES": "GPU-1b2c, MIG-3d4e"}, tmp_path)
    assert [device.name for device in named.devices] == ["GPU-1b2c", "MIG-3d4e"]


def test_amd_devices_are_the_topology_nodes_with_simd_units(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(
        tmp_path,
        {
            f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
            f"{nodes}/1/properties": "simd_count 304\nlocation_id 49408\ndomain 0\n",
            f"{nodes}/10/properties": "simd_count 304\nlocation_id 256\ndomain 1\n",
            "sys/bus/pci/devices/0000:c1:00.0/numa_node": "3\n",
            "sys/bus/pci/devices/0001:01:00.0/numa_node": "-1\n",
        },
    )
    found = find_accelerators({}, tmp_path)
    assert found.variable == "ROCR_VISIBLE_DEVICES"
    assert found.devices == (Accelerator("0", 3), Accelerator("1", None))


def test_ascend_devices_are_found_by_their_device_files(tmp_path: Path) -> None:
    write(tmp_path, {f"dev/davinci{n}": "" for n in ("10", "2", "_manager")})
    found = find_accelerators({}, tmp_path)
    assert found.variable == "ASCEND_RT_VISIBLE_DEVICES"
    assert [device.name for device in found.devices] == ["2", "10"]


def hardware(*nodes: int | None, cpu_count: int = 8) -> Hardware:
    """Return a host with two memory nodes and a device at each of the given ones."""
    half = cpu_count // 2
    cpus_of_node = {0: frozenset(range(half)), 1: frozenset(range(half, cpu_count))}
    devices = tuple(Accelerator(str(n), node) for n, node in enumerate(nodes))
    accelerators = Accelerators(devices, "CUDA_VISIBLE_DEVICES")
    return Hardware(frozenset(range(cpu_count)), cpus_of_node, accelerators)


def shares(words: Mapping[str, str], count: int, host: Hardware) -> list[dict[str, str]]:
    return [resolve(words, index, count, host) for index in range(count)]


def test_each_process_gets_devices_and_the_processors_next_to_them() -> None:
    host = hardware(1, 0, 1, 0)
    auto = {"gpus": "auto", "cpus": "auto", "membind": "auto"}
    assert shares(auto, 4, host) == [
        {"gpus": "0", "cpus": "4,5", "membind": "1"},
        {"gpus": "1", "cpus": "0,1", "membind": "0"},
        {"gpus": "2", "cpus": "6,7", "membind": "1"},
        {"gpus": "3", "cpus": "2,3", "membind": "0"},
    ]
    assert shares({"gpus": "auto", "cpunodebind": "auto"}, 2, host) == [
        {"gpus": "0,1", "cpunodebind": "0,1"},
        {"gpus": "2,3", "cpunodebind": "0,1"},
    ]


def test_processors_are_divided_on_a_host_without_devices() -> None:
    assert [one["cpus"] for one in shares({"cpus": "auto"}, 4, hardware())] == [
        "0,1",
        "2,3",
        "4,5",
        "6,7",
    ]
    assert [one["cpus"] for one in shares({"cpus": "auto"}, 1, hardware())] == ["0,1,2,3,4,5,6,7"]
    crowded = shares({"cpus": "auto"}, 4, hardware(cpu_count=2))
    assert [one["cpus"] for one in crowded] == ["0", "0", "1", "1"]


def test_auto_selects_no_gpus_on_a_host_without_devices() -> None:
    assert shares({"gpus": "auto"}, 2, hardware()) == [{"gpus": ""}, {"gpus": ""}]


def test_devices_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot divide 3 devices among 2 processes of a host"):
        shares({"gpus": "auto"}, 2, hardware(0, 0, 1))


def test_processes_of_a_host_see_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    procs = this_host().spawn_procs({"gpus": 2}, proc_bind={"gpus": "auto"})
    seen = procs.spawn("peek", Peek).variables.call(*names).get(LIMIT_S).values()
    assert seen == [["4", "PCI_BUS_ID"], ["7", "PCI_BUS_ID"]]
    listed = this_host().spawn_procs({"gpus": 1}, proc_bind=[{"gpus": "7"}])
    assert listed.spawn("peek", Peek).variables.call_one(names[0]).get(LIMIT_S) == ["7"]
    for mesh in (procs, listed):
        mesh.stop().get(LIMIT_S)


def test_a_device_that_a_host_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with pytest.raises(ValueError, match="gpus '0' is not on this host: it has 4, 7"):
        this_host().spawn_procs({"gpus": 1}, proc_bind=[{"gpus": "0"}])


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two processors")
def test_processes_of_a_host_divide_its_processors() -> None:
    procs = this_host().spawn_procs({"n": 2}, proc_bind={"cpus": "auto"})
    seen = procs.spawn("peek", Peek).processors.call().get(LIMIT_S).values()
    half = len(CPUS) // 2
    assert seen == [CPUS[:half], CPUS[half:]]
    procs.stop().get(LIMIT_S)


def test_libraries_use_no_more_threads_than_their_process_has_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = str(max(1, len(CPUS) // 2))

    def threads(count: int, **options: Any) -> list[str | None]:
        procs = this_host().spawn_procs({"n": count}, **options)
        found = procs.spawn("peek", Peek).variables.call("OMP_NUM_THREADS").get(LIMIT_S)
        procs.stop().get(LIMIT_S)
        return [one[0] for one in found.values()]

    assert threads(2) == [share, share]
    assert threads(1) == [None]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads(2) == ["3", "3"]
