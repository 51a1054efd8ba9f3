"""The API of the cluster behaves like Kubernetes, as seen through the public client."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from kubernetes import client
from kubernetes import watch as watching
from kubernetes.client.exceptions import ApiException

from tests.jobs.kube.cluster import Cluster, encoded, eventually
from tests.jobs.kube.pods import WAIT, pod, stateful_set

#: Older clients have no type annotations, newer ones have some.
watch: Any = watching


def refused(code: int, told: str = "") -> Any:
    """Expect an error with this status and message."""
    return pytest.raises(ApiException, match=rf"(?s)\({code}\).*{told}")


def _secret(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"key": encoded("value")}}


def test_an_object_is_created_read_listed_patched_and_deleted(
    cluster: Cluster, namespace: str
) -> None:
    core = cluster.core
    made = core.create_namespaced_secret(namespace, _secret("one", color="red"))
    core.create_namespaced_secret(namespace, _secret("two", color="blue"))
    assert core.read_namespaced_secret("one", namespace).metadata.uid == made.metadata.uid
    listed = core.list_namespaced_secret(namespace, label_selector="color in (red, green)")
    assert [one.metadata.name for one in listed.items] == ["one"]
    core.patch_namespaced_secret("one", namespace, {"metadata": {"labels": {"color": None}}})
    assert not core.read_namespaced_secret("one", namespace).metadata.labels
    core.delete_namespaced_secret("one", namespace)
    with refused(404, "NotFound"):
        core.read_namespaced_secret("one", namespace)


def test_a_duplicate_name_is_refused(cluster: Cluster, namespace: str) -> None:
    cluster.core.create_namespaced_secret(namespace, _secret("one"))
    with refused(409, "AlreadyExists"):
        cluster.core.create_namespaced_secret(namespace, _secret("one"))


def test_replacing_an_old_version_is_a_conflict(cluster: Cluster, namespace: str) -> None:
    made = cluster.core.create_namespaced_secret(namespace, _secret("one"))
    cluster.core.patch_namespaced_secret("one", namespace, {"data": {"key": encoded("new")}})
    with refused(409, "Conflict"):
        cluster.core.replace_namespaced_secret("one", namespace, made)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metadata": {"name": "Not_a_name"}}, "metadata.name"),
        ({"metadata": {"name": "a", "labels": {"x": "no spaces here"}}}, "metadata.labels"),
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"spec": {"containers": [{"name": "main"}]}}, "image"),
    ],
)
def test_an_invalid_object_is_refused_with_the_name_of_its_field(
    cluster: Cluster, namespace: str, change: dict[str, Any], told: str
) -> None:
    with refused(422, told):
        cluster.core.create_namespaced_pod(namespace, {**pod("a", WAIT), **change})


def test_a_dry_run_validates_and_creates_nothing(cluster: Cluster, namespace: str) -> None:
    body = pod("a", WAIT)
    made = cluster.core.create_namespaced_pod(namespace, body, dry_run="All")
    assert made.spec.service_account_name == "default"
    assert not cluster.pods(namespace)
    body["spec"]["containers"][0]["image"] = ""
    with refused(422, "image"):
        cluster.core.create_namespaced_pod(namespace, body, dry_run="All")


def test_a_watch_reports_each_change_since_a_version(cluster: Cluster, namespace: str) -> None:
    core = cluster.core
    version = core.list_namespaced_secret(namespace).metadata.resource_version
    core.create_namespaced_secret(namespace, _secret("one", kept="yes"))
    core.create_namespaced_secret(namespace, _secret("other"))
    core.patch_namespaced_secret("one", namespace, {"data": {"key": encoded("new")}})
    core.patch_namespaced_secret("one", namespace, {"metadata": {"labels": {"kept": None}}})
    seen = [
        event["type"]
        for event in watch.Watch().stream(
            core.list_namespaced_secret,
            namespace,
            resource_version=version,
            label_selector="kept",
            timeout_seconds=1,
        )
    ]
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watch_from_an_expired_version_is_refused(stand_in: Cluster, namespace: str) -> None:
    core = stand_in.core
    version = core.list_namespaced_secret(namespace).metadata.resource_version
    core.create_namespaced_secret(namespace, _secret("one"))
    stand_in.forget_history()
    events = watch.Watch().stream(
        core.list_namespaced_secret, namespace, resource_version=version, timeout_seconds=2
    )
    with refused(410, "too old resource version"):
        list(events)


def test_a_watch_from_a_future_version_times_out(stand_in: Cluster, namespace: str) -> None:
    """A real server does this when its cache is behind, which a test cannot cause."""
    events = watch.Watch().stream(
        stand_in.core.list_namespaced_secret,
        namespace,
        resource_version=str(10**12),
        timeout_seconds=1,
    )
    with refused(504, "Too large resource version"):
        list(events)


def test_a_request_without_permission_names_the_verb_and_the_resource(
    cluster: Cluster, namespace: str
) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]}]
    user = Cluster(cluster.user(namespace, rules), cluster.kubeconfig.parent)
    assert user.pods(namespace) == []
    with refused(403, 'cannot create resource .{0,2}"pods'):
        user.core.create_namespaced_pod(namespace, pod("a", WAIT))
    with refused(403, 'cannot list resource .{0,2}"secrets'):
        user.core.list_namespaced_secret(namespace)
    user.client.close()


def test_a_privileged_pod_is_refused(cluster: Cluster, namespace: str) -> None:
    body = pod("a", WAIT)
    body["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with refused(403, "violates PodSecurity"):
        cluster.core.create_namespaced_pod(namespace, body)


def test_objects_are_deleted_with_their_owner(cluster: Cluster, namespace: str) -> None:
    owner = cluster.core.create_namespaced_secret(namespace, _secret("owner"))
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner.metadata.uid}
    owned = {**_secret("owned"), "metadata": {"name": "owned", "ownerReferences": [reference]}}
    cluster.core.create_namespaced_secret(namespace, owned)
    own_set = stateful_set("set", WAIT, 2)
    own_set["metadata"]["ownerReferences"] = [reference]
    cluster.apps.create_namespaced_stateful_set(namespace, own_set)
    eventually(lambda: len(cluster.pods(namespace)) == 2)
    cluster.core.delete_namespaced_secret("owner", namespace)
    eventually(lambda: not cluster.leftovers(namespace))


def test_a_custom_resource_is_served_once_defined(cluster: Cluster, namespace: str) -> None:
    group = f"test-{secrets.token_hex(3)}.example.org"
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    version["subresources"] = {"status": {}}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    definitions: Any = client.ApiextensionsV1Api(cluster.client)
    definitions.create_custom_resource_definition(
        {"metadata": {"name": f"things.{group}"}, "spec": spec}
    )
    things: Any = client.CustomObjectsApi(cluster.client)
    place = (group, "v1alpha1", namespace, "things")
    body = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "Thing",
        "metadata": {"name": "a"},
        "spec": {"size": 3},
    }

    def created() -> Any:
        try:
            return things.create_namespaced_custom_object(*place, body)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    assert eventually(created)["spec"] == {"size": 3}
    things.patch_namespaced_custom_object_status(*place, "a", {"status": {"ready": 1}})
    assert things.get_namespaced_custom_object(*place, "a")["status"] == {"ready": 1}
    definitions.delete_custom_resource_definition(f"things.{group}")
