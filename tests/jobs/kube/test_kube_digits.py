"""The example trains in pods, twice in the same ones."""

from pathlib import Path

import pytest

from mesh_jobs import job_load
from tests.jobs.digits import LIMIT_S, train_twice, with_job
from tests.jobs.kube.cluster import Cluster
from tests.jobs.kube.image import NAME, PYTHON


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
def test_the_example_trains_in_pods(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    job = (
        f"options = KubernetesOptions(kubeconfig={str(cluster.kubeconfig)!r}); "
        f"job = KubernetesJob({namespace!r}, options=options); "
        f"job.add_mesh('trainers', 2, image_spec=ImageSpec({NAME!r}, python={PYTHON!r}))"
    )
    script = with_job(tmp_path, job, "ImageSpec, KubernetesJob, KubernetesOptions")
    try:
        train_twice(script)
    finally:
        job_load(folder=tmp_path).kill()
