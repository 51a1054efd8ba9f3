"""Programs that cannot reach the pods connect through the API server."""

from __future__ import annotations

import gc
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mesh_jobs import JobError, KubernetesJob, KubernetesOptions
from tests.jobs.kube.breakable_proxy import BreakableProxy
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import IMAGE
from tests.jobs.kube.separate_network import SeparateNetwork, separate_network, why_not
from tests.jobs.kube.test_kubernetes_job import ranks_of

#: Calls its actors, and repeats this for each line of its input.
PROGRAM = """
import os, sys
from mesh_core import Actor, endpoint
from mesh_jobs import job_load

class Where(Actor):
    @endpoint
    def rank(self):
        return int(os.environ["MESH_RANK"])

job = job_load(folder=sys.argv[1])
actors = job.state(timeout=60).workers.spawn_procs({"procs": 1}).spawn("where", Where)
print(list(actors.rank.call().get(timeout=30).values()), flush=True)
for line in sys.stdin:
    print(list(actors.rank.call().get(timeout=60).values()), flush=True)
"""


# The websocket library leaves the closing of a rejected websocket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[SeparateNetwork]:
    if reason := why_not():
        pytest.skip(reason)
    server = urllib.parse.urlsplit(cluster.client.configuration.host)
    if server.hostname != "127.0.0.1":
        pytest.skip("the API server is not on this machine")
    with separate_network(server.hostname, server.port or 443) as made:
        yield made


def test_a_program_outside_the_cluster_connects_through_the_api_server(
    cluster: Cluster, namespace: str, tmp_path: Path, elsewhere: SeparateNetwork
) -> None:
    """The program detects that it needs the server, and continues after the route was lost."""
    options = KubernetesOptions(kubeconfig=cluster.kubeconfig)
    job = KubernetesJob(namespace, options=options, folder=tmp_path)
    job.add_mesh("workers", 2, image_spec=IMAGE).apply()
    command = [*elsewhere.command, sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "[0, 1]\n"
        with elsewhere.proxy.closed():
            pass
        program.stdin.write("again\n")
        program.stdin.flush()
        assert program.stdout.readline() == "[0, 1]\n"
        program.stdin.close()
        assert program.wait(PATIENCE_S) == 0
    job.kill()


def test_port_forwarding_through_the_api_server_can_be_requested(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The user has only the permissions of the role."""
    options = KubernetesOptions(port_forward=True)
    job = KubernetesJob(namespace, options=options, folder=tmp_path)
    user = cluster.user(namespace, yaml.safe_load(job.role())["rules"])
    options = KubernetesOptions(kubeconfig=user, port_forward=True)
    job = KubernetesJob(namespace, timeout=PATIENCE_S, options=options, folder=tmp_path)
    job.add_mesh("workers", 2, image_spec=IMAGE)
    assert ranks_of(job) == [0, 1]
    job.kill()


def test_a_missing_permission_to_forward_ports_is_named(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    job = KubernetesJob(namespace, folder=tmp_path)
    user = cluster.user(namespace, yaml.safe_load(job.role())["rules"])
    options = KubernetesOptions(kubeconfig=user, port_forward=True)
    job = KubernetesJob(namespace, timeout=PATIENCE_S, options=options, folder=tmp_path)
    job.add_mesh("workers", 1, image_spec=IMAGE)
    with pytest.raises(JobError, match="no permission to create pods/portforward"):
        job.state()
    job.kill()


def test_attach_to_is_the_gateway_to_all_workers(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The address belongs to a load balancer that forwards to one of the workers."""
    balancer = BreakableProxy("127.0.0.1", 0)
    proxy = f"tcp://127.0.0.1:{balancer.port}"
    options = KubernetesOptions(kubeconfig=cluster.kubeconfig, attach_to=proxy)
    job = KubernetesJob(namespace, timeout=PATIENCE_S, options=options, folder=tmp_path)
    job.add_mesh("workers", 2, image_spec=IMAGE).apply()
    eventually(lambda: job.status().is_up)
    host, _, port = str(job.status().hosts[1].address).removeprefix("tcp://").rpartition(":")
    balancer.lead_to(host, int(port))
    assert ranks_of(job) == [0, 1]
    assert balancer.taken
    job.kill()
    balancer.end()
