"""Operators and MeshJobs for tests."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client
from kubernetes.client import ApiException

from tests.jobs.kube.cluster import Cluster, eventually
from tests.jobs.kube.image import NAME, PYTHON

GROUP, VERSION, PLURAL = "mesh-jobs.dev", "v1alpha1", "meshjobs"


@functools.cache
def manifests(*options: str) -> tuple[Any, ...]:
    """Return the manifests that an administrator applies before the first MeshJob."""
    command = [sys.executable, "-m", "mesh_jobs.operator", "manifests", *options]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return tuple(yaml.safe_load_all(told.stdout))


def rules(*kinds: str, made: Sequence[Any]) -> list[Any]:
    """Return the permissions of the operator in the manifests of these kinds."""
    own = [one for one in made if one["metadata"]["name"] == "mesh-operator"]
    return [rule for one in own if one["kind"] in kinds for rule in one["rules"]]


class MeshJobs:
    """The MeshJobs of a cluster; the first use installs their definition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._api: Any = client.CustomObjectsApi(cluster.client)
        definitions: Any = client.ApiextensionsV1Api(cluster.client)
        (crd,) = (one for one in manifests() if one["kind"] == "CustomResourceDefinition")
        try:
            definitions.create_custom_resource_definition(crd)
        except ApiException as error:
            if error.status != 409:
                raise
        eventually(self._is_served)

    def _is_served(self) -> bool:
        try:
            self._api.list_namespaced_custom_object(GROUP, VERSION, "default", PLURAL)
        except ApiException as error:
            if error.status == 404:
                return False
            raise
        return True

    def upgrade(self, fields: dict[str, Any]) -> None:
        """Add fields to the definition of meshes, as a later release may do."""
        definitions: Any = client.ApiextensionsV1Api(self._cluster.client)
        (crd,) = (one for one in manifests() if one["kind"] == "CustomResourceDefinition")
        name = crd["metadata"]["name"]
        upgraded = definitions.read_custom_resource_definition(name, _preload_content=False)
        body = json.loads(upgraded.data)
        spec = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"]["meshes"]["items"]["properties"] |= fields
        definitions.replace_custom_resource_definition(name, body)

    def create(self, namespace: str, name: str, *meshes: Any, **spec: Any) -> Any:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "MeshJob",
            "metadata": {"name": name},
            "spec": {"meshes": list(meshes), **spec},
        }
        place = (GROUP, VERSION, namespace, PLURAL)
        return self._api.create_namespaced_custom_object(*place, body)

    def get(self, namespace: str, name: str) -> Any:
        return self._api.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)

    def names(self, namespace: str) -> list[str]:
        place = (GROUP, VERSION, namespace, PLURAL)
        found = self._api.list_namespaced_custom_object(*place)["items"]
        return [one["metadata"]["name"] for one in found]

    def patch(self, namespace: str, name: str, *meshes: Any) -> Any:
        body = {"spec": {"meshes": list(meshes)}}
        place = (GROUP, VERSION, namespace, PLURAL)
        return self._api.patch_namespaced_custom_object(*place, name, body)

    def delete(self, namespace: str, name: str) -> None:
        place = (GROUP, VERSION, namespace, PLURAL)
        self._api.delete_namespaced_custom_object(*place, name)

    def condition(self, namespace: str, name: str, type: str) -> tuple[str, str]:
        """Return status and reason of a condition of the current spec; empty if not reported."""
        found = self.get(namespace, name)
        status = found.get("status") or {}
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return "", ""
        told = {one["type"]: one for one in status["conditions"]}
        return told[type]["status"], told[type]["reason"]

    def is_ready(self, namespace: str, name: str) -> bool:
        return self.condition(namespace, name, "Ready")[0] == "True"


def mesh(name: str = "workers", hosts: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "hosts": hosts, "image": NAME, "python": PYTHON, **more}


class OperatorProcess:
    """A `python -m mesh_jobs.operator` process that runs until it is stopped or killed."""

    def __init__(self, kubeconfig: Path, *options: str) -> None:
        # The process exits with the tests, however they end.
        tied = ["setpriv", "--pdeathsig", "KILL", "--"]
        command = [*tied, sys.executable, "-m", "mesh_jobs.operator"]
        command += ["--kubeconfig", str(kubeconfig)]
        self._process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        # The name of the operator, as in the Lease: `mesh operator NAME manages ...`.
        self.name = self._process.stdout.readline().split()[2]

    def kill(self) -> None:
        """Kill the process, like a power cut."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> str:
        """Terminate the process and return its standard error."""
        self._process.terminate()
        return self._process.communicate(timeout=60)[1]
