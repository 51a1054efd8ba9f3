"""The test cluster runs jobs, and fails as requested."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.jobs.slurm.jobs import eventually
from tests.jobs.slurm.remote import RemoteCluster


def said(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def test_every_node_runs_tasks_under_its_own_name(cluster: RemoteCluster) -> None:
    names = said("srun", "--nodes=4", "--label", "sh", "-c", "hostname; echo $SLURMD_NODENAME")
    assert sorted({line.split()[1] for line in names.splitlines()}) == cluster.nodes()


def test_nodes_and_users_see_the_same_folder(cluster: RemoteCluster, tmp_path: Path) -> None:
    said("srun", "--nodes=1", "touch", str(tmp_path / "there"))
    assert (tmp_path / "there").exists()


def test_devices_are_allocated(cluster: RemoteCluster) -> None:
    devices = said("srun", "--gpus-per-node=2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert devices.strip() == "0,1"


def test_commands_on_a_node_are_listed_and_end_with_a_power_cut(cluster: RemoteCluster) -> None:
    node = cluster.nodes()[-1]
    words = ["srun", f"--nodelist={node}", "sh", "-c", "echo up; sleep 611"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        eventually(lambda: "sleep 611" in cluster.commands_on(node))
        cluster.power_cut(node)
        assert cluster.commands_on(node) == []
        # An orderly cancellation would wait for the node.
        job.kill()
    cluster.power_on(node)
    assert said("srun", f"--nodelist={node}", "hostname") == f"{node}\n"


def test_commands_fail_while_the_controller_is_stopped(cluster: RemoteCluster) -> None:
    cluster.stop_controller()
    asked = subprocess.run(["squeue"], capture_output=True, text=True, timeout=60)
    assert asked.returncode != 0
    cluster.start_controller()
    assert said("squeue", "--noheader") == ""
