"""Authentication by token, and authorization by roles and their bindings."""

from __future__ import annotations

import secrets
import threading

from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.request import Request
from tests.jobs.kube.api.store import Store

#: The user with this name may do everything.
ADMIN = "admin"

_RBAC = "rbac.authorization.k8s.io"


class Permissions:
    """Maps tokens to users, and evaluates the roles in the store."""

    def __init__(self, store: Store, kinds: Kinds, admin_token: str) -> None:
        self._store = store
        self._roles = _known(kinds, "roles")
        self._bindings = _known(kinds, "rolebindings")
        self._cluster_roles = _known(kinds, "clusterroles")
        self._cluster_bindings = _known(kinds, "clusterrolebindings")
        self._lock = threading.Lock()
        self._users = {admin_token: ADMIN}

    def issue(self, namespace: str, account: str) -> str:
        """Return a new token of a service account."""
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._users[token] = f"system:serviceaccount:{namespace}:{account}"
        return token

    def user(self, authorization: str) -> str:
        """Return the name of the user who sent a request.

        Raises:
            Refusal: The token is unknown.
        """
        scheme, _, token = authorization.partition(" ")
        with self._lock:
            user = self._users.get(token)
        if user is None or scheme.lower() != "bearer":
            raise Refusal(401, "Unauthorized")
        return user

    def check(self, user: str, request: Request) -> None:
        """Reject a request that no role of the user allows."""
        if self.may(user, request):
            return
        named = f' "{request.name}"' if request.name and request.verb != "create" else ""
        where = f' in the namespace "{request.namespace}"' if request.namespace else ""
        scope = where or " at the cluster scope"
        plural = request.kind.plural + (f"/{request.subresource}" if request.subresource else "")
        message = (
            f'{request.kind.resource}{named} is forbidden: User "{user}" cannot {request.verb}'
            f' resource "{plural}" in API group "{request.kind.group}"{scope}'
        )
        raise Refusal(403, message, details={"name": request.name, "kind": request.kind.plural})

    def may(self, user: str, request: Request) -> bool:
        if user == ADMIN:
            return True
        for binding in self._store.view(self._cluster_bindings):
            if any(_is(subject, user) for subject in binding.get("subjects") or []):
                name = binding["roleRef"]["name"]
                role = self._store.find(self._cluster_roles, "", name)
                if role and any(_allows(rule, request) for rule in role.get("rules") or []):
                    return True
        if not request.namespace:
            return False
        for binding in self._store.view(self._bindings, request.namespace):
            if not any(_is(subject, user) for subject in binding.get("subjects") or []):
                continue
            role = self._store.find(self._roles, request.namespace, binding["roleRef"]["name"])
            if role and any(_allows(rule, request) for rule in role.get("rules") or []):
                return True
        return False


def _known(kinds: Kinds, plural: str) -> Kind:
    found = kinds.find(_RBAC, "v1", plural)
    assert found is not None
    return found


def _is(subject: Object, user: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return subject["kind"] == "User" and bool(subject["name"] == user)


def _allows(rule: Object, request: Request) -> bool:
    plural = request.kind.plural + (f"/{request.subresource}" if request.subresource else "")
    names = rule.get("resourceNames") or []
    return (
        bool({"*", request.verb} & set(rule.get("verbs") or []))
        and bool({"*", request.kind.group} & set(rule.get("apiGroups") or []))
        and bool({"*", plural} & set(rule.get("resources") or []))
        and (not names or (bool(request.name) and request.name in names))
    )
