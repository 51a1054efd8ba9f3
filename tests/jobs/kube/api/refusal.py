"""The responses to rejected requests."""

from __future__ import annotations

from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    504: "Timeout",
}


class Refusal(Exception):
    """A rejected request: an HTTP status, and a Status object for the client."""

    def __init__(
        self, code: int, message: str, reason: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or REASONS.get(code, "InternalError"),
            "details": details or {},
            "code": code,
        }


def not_found(plural: str, name: str) -> Refusal:
    return Refusal(404, f'{plural} "{name}" not found', details={"name": name, "kind": plural})


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> Refusal:
    """Return an error with all causes: each is a field and the problem with its value."""
    told = [f"{field}: {message}" for field, message in causes]
    text = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [
            {"reason": "FieldValueInvalid", "message": message, "field": field}
            for field, message in causes
        ],
    }
    return Refusal(422, f'{kind} "{name}" is invalid: {text}', details=details)
