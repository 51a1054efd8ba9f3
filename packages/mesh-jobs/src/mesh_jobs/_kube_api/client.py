"""A client of the Kubernetes API server, with untyped objects.

The official client library handles kubeconfig files, tokens, proxies and TLS. Its typed methods
differ between versions, so requests are sent directly through its connection pool.
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
from mesh_jobs._kube_api.watch_stream import KubeWatchStream

__all__ = [
    "CRD_GROUP",
    "CRD_VERSION",
    "KubeApi",
    "KubeConflict",
    "KubeExpired",
    "KubeNotFound",
]

_TIMEOUT_S = 10.0
# The number of immediate retries if a connection cannot be established.
_RETRIES = 1
_BUSY = (429, 500, 502, 503, 504)
_PATCH = "application/merge-patch+json"
# The server ends a watch after this time, so a watch that is silent for longer is lost.
_WATCH_S = 10
_WATCH_SILENT_S = 15.0

CRD_GROUP = "mesh-jobs.dev"
CRD_VERSION = "v1alpha1"

_GROUPS = {
    "nodes": "api/v1",
    "pods": "api/v1",
    "services": "api/v1",
    "secrets": "api/v1",
    "events": "api/v1",
    "statefulsets": "apis/apps/v1",
    "jobs": "apis/batch/v1",
    "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
    "poddisruptionbudgets": "apis/policy/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "meshjobs": f"apis/{CRD_GROUP}/{CRD_VERSION}",
}

# Some versions of the library have no type annotations.
_load_kube_config: Any = config.load_kube_config
_load_incluster_config: Any = config.load_incluster_config

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
# The message of a server whose cache is behind the requested resource version.
_TOO_NEW = "Too large resource version"
# Part of the message of a server if no role grants a permission.
_NO_RIGHT = " cannot "

Object = dict[str, Any]
Objects = list[Object]


class KubeNotFound(JobError):
    """The object does not exist."""


class KubeConflict(JobError):
    """The object already exists, or was modified since it was read."""


class KubeExpired(JobError):
    """The resource version has expired or is not known yet: list the objects again."""


_ERRORS: dict[int, type[JobError]] = {404: KubeNotFound, 409: KubeConflict}


class KubeApi:
    """Client for one namespace of one cluster, with the credentials of one user.

    Args:
        namespace: The namespace; if empty, lists and watches cover all namespaces.
        kubeconfig: The kubeconfig file. Defaults to the service account of the pod that runs this
            program, or outside of a cluster to the kubeconfig of the user.
        context: The context in that file. Defaults to its current context.

    Raises:
        ConfigError: The file does not exist, or is not a valid kubeconfig.
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
        self._client: Any = client.ApiClient(settings)
        self._pool: Any = self._client.rest_client.pool_manager

    def within(self, namespace: str) -> KubeApi:
        """Return a client for another namespace of the same cluster, as the same user."""
        other = object.__new__(KubeApi)
        other.namespace = namespace
        other._settings, other._pool, other._client = self._settings, self._pool, self._client
        return other

    def cluster_wide(self) -> KubeApi:
        """Return a client for objects that belong to no namespace, such as nodes."""
        return self.within("")

    @property
    def client(self) -> Any:
        """The `ApiClient` of the client library."""
        return self._client

    def list(self, plural: str, selector: str = "") -> Objects:
        """List the objects that match a label selector.

        Raises:
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        return self.listed(plural, selector)[0]

    def listed(self, plural: str, selector: str, *, is_cached: bool = False) -> tuple[Objects, str]:
        """List the objects that match a label selector, with the resource version of the list.

        Args:
            plural: The plural name of the resource.
            selector: The label selector.
            is_cached: Whether to accept a list from the cache of the server. It may be slightly out
                of date, and the server can watch from its version.

        Raises:
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        query = {"labelSelector": selector} if selector else {}
        if is_cached:
            query["resourceVersion"] = "0"
        found = self._request("list", plural, "", query=query)
        return list(found.get("items") or []), str(found["metadata"]["resourceVersion"])

    def watch(self, plural: str, selector: str, version: str) -> KubeWatchStream:
        """Watch the objects that match a label selector.

        Args:
            plural: The plural name of the resource.
            selector: The label selector.
            version: The resource version to start from.

        Raises:
            KubeExpired: The resource version has expired.
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        if selector:
            query["labelSelector"] = selector
        return KubeWatchStream(self._request("watch", plural, "", query=query))

    def create(self, plural: str, body: Object, is_dry_run: bool = False) -> Object:
        """Create an object.

        Raises:
            KubeConflict: An object of that name exists.
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        query = {"dryRun": "All"} if is_dry_run else {}
        return self._object("create", plural, "", body=body, query=query)

    def get(self, plural: str, name: str) -> Object:
        """Return an object.

        Raises:
            KubeNotFound: The object does not exist.
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        return self._object("get", plural, name)

    def patch(self, plural: str, name: str, body: Object) -> Object:
        """Patch an object with a JSON merge patch.

        Raises:
            KubeNotFound: The object does not exist.
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        return self._object("patch", plural, name, body=body)

    def update(self, plural: str, name: str, body: Object) -> Object:
        """Replace an object, if it still has the `resourceVersion` of the new one.

        Raises:
            KubeNotFound: The object does not exist.
            KubeConflict: The object has another version.
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        return self._object("update", plural, name, body=body)

    def delete(
        self, plural: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete an object and its dependents; does nothing if the object does not exist.

        Args:
            plural: The plural name of the resource.
            name: The name of the object.
            uid: The uid that the object must have; objects with another uid are not deleted.
            grace_s: The grace period of a pod in seconds. Defaults to that of the pod. A shorter
                one applies to a pod that is terminating already.

        Raises:
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request.
        """
        try:
            body: Object = {"propagationPolicy": "Background"}
            if uid is not None:
                body["preconditions"] = {"uid": uid}
            if grace_s is not None:
                body["gracePeriodSeconds"] = grace_s
            self._request("delete", plural, name, body=body)
        except KubeNotFound:
            return
        except KubeConflict:
            if uid is None:
                raise

    def log(self, pod: str, container: str, lines: int, is_previous: bool) -> str:
        """Return the last lines of the log of a container.

        Raises:
            SchedulerUnreachable: The API server does not respond.
            JobError: The API server rejects the request, or the container does not exist.
        """
        query = {"container": container, "tailLines": str(lines)}
        if is_previous:
            query["previous"] = "true"
        return str(self._request("get", "pods", f"{pod}/log", query=query))

    def _object(self, verb: str, plural: str, name: str, **more: Any) -> Object:
        found = self._request(verb, plural, name, **more)
        assert isinstance(found, dict), f"{verb} of {plural} returned no object"
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
        method = _METHODS.get(verb, "GET")
        where = f"namespaces/{self.namespace}/" if self.namespace else ""
        path = f"{_GROUPS[plural]}/{where}{plural}"
        url = f"{self._settings.host.rstrip('/')}/{path}{f'/{name}' if name else ''}"
        if query:
            url += f"?{urllib.parse.urlencode(query)}"
        headers = {
            "Accept": "application/json",
            "Content-Type": _PATCH if verb == "patch" else "application/json",
            **self._authorization(),
        }
        # A request that may have been executed is not retried; only failed connections are.
        retries = urllib3.Retry(total=_RETRIES, connect=_RETRIES, read=0, other=0)
        silent_s = _WATCH_SILENT_S if verb == "watch" else _TIMEOUT_S
        try:
            answer = self._pool.request(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body),
                timeout=urllib3.Timeout(connect=_TIMEOUT_S, read=silent_s),
                retries=retries,
                preload_content=verb != "watch",
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise SchedulerUnreachable(
                f"the API server {self._settings.host} does not respond: {error}: try again later"
            ) from error
        return self._read(answer, verb, plural, name)

    def _authorization(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in self._settings.auth_settings().values():
            if one.get("in") == "header" and one.get("value"):
                found[one["key"]] = one["value"]
        return found

    def _read(self, answer: Any, verb: str, plural: str, name: str) -> Any:
        if verb == "watch" and answer.status < 300:
            return answer
        text = answer.data.decode(errors="replace")
        if answer.status < 300:
            return json.loads(text) if not name.endswith("/log") else text
        try:
            message = str(json.loads(text).get("message", text))
        except (ValueError, AttributeError):
            message = text[:200] or answer.reason
        what = f"{plural}/{name}" if name else plural
        if answer.status == 410 or (answer.status == 504 and _TOO_NEW in message):
            raise KubeExpired(
                f"the cluster cannot {verb} {what} from there: {message}: list them again"
            )
        # Quotas, policies and terminating namespaces return 403 as well.
        if answer.status == 403 and _NO_RIGHT in message:
            where = f"in namespace {self.namespace!r}" if self.namespace else "in the cluster"
            raise JobError(
                f"no permission to {verb} {what.partition('/')[0]} {where}: {message}: "
                "KubernetesJob.role() prints the required role"
            )
        if answer.status == 401:
            raise JobError(
                f"the API server {self._settings.host} rejected the credentials: {message}: log in "
                "again"
            )
        if answer.status in _BUSY:
            raise SchedulerUnreachable(
                f"the API server cannot {verb} {what} now: {message}: try again later"
            )
        raise _ERRORS.get(answer.status, JobError)(
            f"the cluster refuses to {verb} {what}: {message}: see plan()"
        )
