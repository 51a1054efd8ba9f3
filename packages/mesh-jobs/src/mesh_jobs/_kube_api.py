"""Requests to the API server of a cluster: plain values in and out, and errors that say what to do.

The client library brings what it is good at: kubeconfig files, tokens, proxies and TLS. Its typed
calls differ between versions, so requests go through its connection pool.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Mapping
from typing import Any

import urllib3
from kubernetes import client, config

from mesh_core import ConfigError
from mesh_jobs._errors import JobError, SchedulerUnreachable

__all__ = ["KubeApi", "KubeConflict", "KubeMissing"]

_TIMEOUT_S = 10.0
# Of each request that fails before it is answered, so many more are tried at once.
_RETRIES = 1
_BUSY = (429, 500, 502, 503, 504)
_PATCH = "application/merge-patch+json"

_GROUPS = {
    "pods": "api/v1",
    "services": "api/v1",
    "secrets": "api/v1",
    "statefulsets": "apis/apps/v1",
    "jobs": "apis/batch/v1",
}

# The library has no types in some versions.
_load_kube_config: Any = config.load_kube_config
_load_incluster_config: Any = config.load_incluster_config

Object = dict[str, Any]


class KubeMissing(JobError):
    """There is no such object."""


class KubeConflict(JobError):
    """There is such an object already, or it has changed."""


class KubeApi:
    """One namespace of one cluster, as one user.

    Args:
        namespace: The namespace.
        kubeconfig: The file that says where the cluster is; when left out the service account of
            the pod that this program runs in, else the user's own file.
        context: The context in that file; its current one when left out.

    Raises:
        ConfigError: There is no such file, or nothing useful in it.
    """

    def __init__(self, namespace: str, kubeconfig: str | None, context: str | None) -> None:
        self.namespace = namespace
        settings: Any = client.Configuration()
        try:
            if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                _load_incluster_config(client_configuration=settings)
            else:
                _load_kube_config(kubeconfig, context, client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            where = kubeconfig or "the kubeconfig of this user"
            raise ConfigError(f"{where} cannot be used: {error}: give kubeconfig=") from error
        self._settings = settings
        api_client: Any = client.ApiClient(settings)
        self._pool: Any = api_client.rest_client.pool_manager

    def list(self, plural: str, order_id: str, label: str) -> list[Object]:
        """Gives all objects of an order.

        Raises:
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses.
        """
        query = {"labelSelector": f"{label}={order_id}"}
        found = self._request("list", plural, "", query=query)
        return list(found.get("items") or [])

    def create(self, plural: str, body: Object, is_dry_run: bool = False) -> Object:
        """Makes an object.

        Raises:
            KubeConflict: There is one of that name.
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses.
        """
        query = {"dryRun": "All"} if is_dry_run else {}
        return self._object("create", plural, "", body=body, query=query)

    def get(self, plural: str, name: str) -> Object:
        """Gives an object.

        Raises:
            KubeMissing: There is none.
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses.
        """
        return self._object("get", plural, name)

    def patch(self, plural: str, name: str, body: Object) -> Object:
        """Changes an object, by a merge patch.

        Raises:
            KubeMissing: There is none.
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses.
        """
        return self._object("patch", plural, name, body=body)

    def delete(self, plural: str, name: str) -> None:
        """Deletes an object and what belongs to it; nothing when it is gone.

        Raises:
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses.
        """
        try:
            self._request("delete", plural, name, body={"propagationPolicy": "Background"})
        except KubeMissing:
            return

    def log(self, pod: str, container: str, lines: int, is_previous: bool) -> str:
        """Gives the last lines of a container.

        Raises:
            SchedulerUnreachable: The server does not answer.
            JobError: It refuses, or there is none.
        """
        query = {"container": container, "tailLines": str(lines)}
        if is_previous:
            query["previous"] = "true"
        return str(self._request("get", "pods", f"{pod}/log", query=query))

    def _object(self, verb: str, plural: str, name: str, **more: Any) -> Object:
        found = self._request(verb, plural, name, **more)
        assert isinstance(found, dict), f"{verb} of {plural} gave no object"
        return found

    def _request(
        self,
        verb: str,
        plural: str,
        name: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        method = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}.get(verb, "GET")
        path = f"{_GROUPS[plural]}/namespaces/{self.namespace}/{plural}"
        url = f"{self._settings.host.rstrip('/')}/{path}{f'/{name}' if name else ''}"
        if query:
            url += f"?{urllib.parse.urlencode(query)}"
        headers = {
            "Accept": "application/json",
            "Content-Type": _PATCH if verb == "patch" else "application/json",
            **self._authorization(),
        }
        # What may have been done must not be tried again unseen: only the connection is.
        retries = urllib3.Retry(total=_RETRIES, connect=_RETRIES, read=0, other=0)
        try:
            answer = self._pool.request(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body),
                timeout=_TIMEOUT_S,
                retries=retries,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise SchedulerUnreachable(
                f"the API server {self._settings.host} does not answer: {error}: ask again later"
            ) from error
        return self._read(answer, verb, plural, name)

    def _authorization(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in self._settings.auth_settings().values():
            if one.get("in") == "header" and one.get("value"):
                found[one["key"]] = one["value"]
        return found

    def _read(self, answer: Any, verb: str, plural: str, name: str) -> Any:
        text = answer.data.decode(errors="replace")
        if answer.status < 300:
            return json.loads(text) if not name.endswith("/log") else text
        try:
            told = str(json.loads(text).get("message", text))
        except (ValueError, AttributeError):
            told = text[:200] or answer.reason
        what = f"{plural}/{name}" if name else plural
        if answer.status == 403:
            raise JobError(
                f"no right to {verb} {what.partition('/')[0]} in namespace {self.namespace!r}: "
                f"{told}: KubernetesJob.role() prints the role that is needed"
            )
        if answer.status == 401:
            raise JobError(
                f"the API server {self._settings.host} does not know who asks: {told}: log in again"
            )
        if answer.status in _BUSY:
            raise SchedulerUnreachable(
                f"the API server cannot {verb} {what} now: {told}: ask again later"
            )
        error = {404: KubeMissing, 409: KubeConflict}.get(answer.status, JobError)
        raise error(f"the cluster refuses to {verb} {what}: {told}: see plan()")
