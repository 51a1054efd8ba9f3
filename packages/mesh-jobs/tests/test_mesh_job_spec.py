"""A MeshJob describes the same pods as a KubernetesJob."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._kube.manifests import manifests
from mesh_jobs._kube.mesh_job import allocation_id, fingerprints, job_spec

GRACE = "terminationGracePeriodSeconds"


def mesh_job(**spec: Any) -> dict[str, Any]:
    meta = {"name": "train", "namespace": "research", "uid": "8a-1"}
    return {"metadata": meta, "spec": {"meshes": [{"name": "a", "hosts": 1, "image": "i"}], **spec}}


@pytest.mark.parametrize(("spec", "grace_s"), [({}, 600), ({GRACE: 30}, 30)])
def test_pods_have_the_grace_period_of_their_mesh_job(spec: dict[str, int], grace_s: int) -> None:
    one = mesh_job(**spec)
    request = AllocationRequest(allocation_id(one), job_spec(one), Path("."))
    ((_, _, job),) = [found for found in manifests(request, "job") if found[1] == "jobs"]
    assert job["spec"]["template"]["spec"][GRACE] == grace_s


def test_a_default_filled_in_by_the_cluster_is_not_a_change() -> None:
    assert fingerprints(mesh_job()) == fingerprints(mesh_job(**{GRACE: 600}))
    assert fingerprints(mesh_job()) != fingerprints(mesh_job(**{GRACE: 30}))
