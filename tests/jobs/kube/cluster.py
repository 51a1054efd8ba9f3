"""A cluster for tests: the stand-in, or the one that MESH_TEST_KUBECONFIG names."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from tests.jobs.kube.breakable_proxy import BreakableProxy
from tests.jobs.kube.kubeconfig import write
from tests.jobs.kube.kubelet.pod import FAULT

#: Older clients have no type annotations, newer ones have some.
load: Any = config.new_client_from_config

#: Time that a test waits for an action of the cluster, in seconds.
PATIENCE_S = 60.0

#: The pause between two polls of `eventually`, which grows to limit the load of long waits.
PAUSE_S, PAUSE_MAX_S = 0.02, 0.1
PAUSE_GROWTH = 1.2

ROOT = Path(__file__).resolve().parents[3]


class Cluster:
    """The operations of tests on a cluster; create one with `started` or `given`."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self._folder = folder
        self.client: Any = load(str(kubeconfig))
        self.core: Any = client.CoreV1Api(self.client)
        self.apps: Any = client.AppsV1Api(self.client)
        self.batch: Any = client.BatchV1Api(self.client)
        self.policy: Any = client.PolicyV1Api(self.client)
        self.rbac: Any = client.RbacAuthorizationV1Api(self.client)
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def started(cls, folder: Path) -> Cluster:
        """Start the stand-in as a process that exits with the tests, however they end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.kube", str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the stand-in did not start: status {process.wait()}")
        cluster = cls(Path(json.loads(line)["kubeconfig"]), folder)
        cluster._process = process
        return cluster

    @classmethod
    def given(cls, folder: Path) -> Cluster | None:
        """Return the cluster that the environment names, or None."""
        named = os.environ.get("MESH_TEST_KUBECONFIG")
        return cls(Path(named), folder) if named else None

    @property
    def is_stand_in(self) -> bool:
        return self._process is not None

    def end(self) -> None:
        self.client.close()
        if self._process is not None:
            self._process.communicate(timeout=PATIENCE_S)

    def make_namespace(self, **labels: str) -> str:
        """Create a namespace and return its name."""
        name = f"mesh-test-{secrets.token_hex(4)}"
        self.core.create_namespace({"metadata": {"name": name, "labels": labels}})
        # The API server rejects pods until the service account exists.
        eventually(lambda: self._has_account(name))
        return name

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace, unless it was deleted already, and wait until it is removed."""
        if self._has_namespace(name):
            self.core.delete_namespace(name)
        eventually(lambda: not self._has_namespace(name))

    def _has_namespace(self, name: str) -> bool:
        return bool(self.core.list_namespace(field_selector=f"metadata.name={name}").items)

    def _has_account(self, namespace: str) -> bool:
        found = self.core.list_namespaced_service_account(namespace).items
        return any(one.metadata.name == "default" for one in found)

    def user(
        self, namespace: str, rules: list[dict[str, Any]], is_everywhere: bool = False
    ) -> Path:
        """Create a user with only these permissions, and return the path of the kubeconfig.

        Args:
            namespace: The namespace of the user, in which the rules apply.
            rules: The permissions of the user.
            is_everywhere: Whether the rules apply in every namespace.
        """
        name = f"user-{secrets.token_hex(4)}"
        meta = {"metadata": {"name": name, "namespace": namespace}}
        self.core.create_namespaced_service_account(namespace, meta)
        kind = "ClusterRole" if is_everywhere else "Role"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
        if is_everywhere:
            self.rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
            self.rbac.create_cluster_role_binding(binding)
        else:
            self.rbac.create_namespaced_role(namespace, {**meta, "rules": rules})
            self.rbac.create_namespaced_role_binding(namespace, binding)
        asked = {"spec": {"expirationSeconds": 3600, "audiences": None}}
        found = self.core.create_namespaced_service_account_token(name, namespace, asked)
        path = self._folder / f"{name}.kubeconfig"
        host = self.client.configuration.host
        write(path, host, self._authority(), found.status.token)
        return path

    def _authority(self) -> bytes:
        return Path(self.client.configuration.ssl_ca_cert).read_bytes()

    def breakable_proxy(self, kubeconfig: Path | None = None) -> tuple[BreakableProxy, Path]:
        """Return a route to the server that can be cut, and a kubeconfig that uses it."""
        url = urllib.parse.urlsplit(self.client.configuration.host)
        assert url.hostname is not None
        proxy = BreakableProxy(url.hostname, url.port or 443)
        loaded: Any = yaml.safe_load((kubeconfig or self.kubeconfig).read_text())
        loaded["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
        loaded["clusters"][0]["cluster"]["tls-server-name"] = url.hostname
        path = self._folder / f"{secrets.token_hex(4)}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(loaded))
        return proxy, path

    def break_pod(self, namespace: str, name: str, fault: str | None) -> None:
        """Inject `oom` or `evict` into a pod; None removes the fault."""
        patch = {"metadata": {"annotations": {FAULT: fault}}}
        self.core.patch_namespaced_pod(name, namespace, patch)

    def break_node(self, name: str, fault: str | None) -> None:
        """Make a node `dead`; None restores it."""
        self.core.patch_node(name, {"metadata": {"annotations": {FAULT: fault}}})

    def forget_history(self) -> None:
        """Make every watch from an older version too old; only the stand-in supports this."""
        self._tell("forget-history")

    @contextlib.contextmanager
    def failing(self, how: str, **which: object) -> Iterator[None]:
        """Make the stand-in fail for the duration of the block.

        Args:
            how: One of `WAYS`, see `api/faults.py`.
            which: The affected requests: `verb`, `plural`, `user`, `after`, `times`.
        """
        self._tell(f"fail?{urllib.parse.urlencode({'how': how, **which})}")
        try:
            yield
        finally:
            self._tell("repair")

    def held(self) -> int:
        """Return the number of requests that the stand-in currently holds."""
        return int(json.loads(self._tell("held"))["held"])

    def _tell(self, command: str) -> str:
        answer = self.client.rest_client.request(
            "GET",
            f"{self.client.configuration.host}/standin/{command}",
            headers=self.authorization(),
        )
        found = answer.data or answer.read()
        return found if isinstance(found, str) else found.decode()

    def authorization(self) -> dict[str, str]:
        """Return the header that authenticates the admin."""
        configuration = self.client.configuration
        for name in ("authorization", "BearerToken"):
            if name in configuration.api_key:
                return {"authorization": configuration.get_api_key_with_prefix(name)}
        return {}

    def pods(self, namespace: str, **choice: str) -> list[Any]:
        return list(self.core.list_namespaced_pod(namespace, **choice).items)

    def pod(self, namespace: str, name: str) -> Any:
        return self.core.read_namespaced_pod(name, namespace)

    def leftovers(self, namespace: str) -> list[str]:
        """Return every object in a namespace that tests may have created, as `kind/name`."""
        lists = [
            ("pod", self.core.list_namespaced_pod),
            ("service", self.core.list_namespaced_service),
            ("secret", self.core.list_namespaced_secret),
            ("statefulset", self.apps.list_namespaced_stateful_set),
            ("job", self.batch.list_namespaced_job),
            ("budget", self.policy.list_namespaced_pod_disruption_budget),
        ]
        return [
            f"{kind}/{one.metadata.name}" for kind, each in lists for one in each(namespace).items
        ]


def eventually(look: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Poll until the result is true, and return it.

    Raises:
        AssertionError: The result was never true within the time limit.
    """
    end, pause_s = time.monotonic() + patience_s, PAUSE_S
    while not (seen := look()):
        assert time.monotonic() < end, f"not seen in {patience_s:g} s: {seen!r}"
        time.sleep(pause_s)
        pause_s = min(PAUSE_MAX_S, PAUSE_GROWTH * pause_s)
    return seen


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
