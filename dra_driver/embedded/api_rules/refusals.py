"""Refusals: the Status objects with which a Kubernetes API server refuses a request.

In: what is wrong. Out: an `ApiError` that carries the HTTP status and the Status object. Nothing is checked here: the
rules and the registry decide what is wrong.
Source: k8s.io/apimachinery api/errors; meta/v1 Status.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an object: the field, the reason (`FieldValueInvalid` …) and a message."""

    field: str
    reason: str
    message: str

    def wire(self) -> Wire:
        """Return the cause as a Status contains it."""
        return {"field": self.field, "reason": self.reason, "message": self.message}


class ApiRefusal(ApiError):
    """An answer of the API server that is not a success. The HTTP server sends its `wire()`."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        details: Wire | None = None,
        retry_after_s: float = 0.0,
        continue_token: str = "",
    ) -> None:
        super().__init__(
            _code(reason), message, status=status, retry_after_s=retry_after_s, continue_token=continue_token
        )
        self.reason = reason
        self.details = details

    def wire(self) -> Wire:
        """Return the Status object."""
        answer: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        if self.details:
            answer["details"] = self.details
        return answer


def _code(reason: str) -> str:
    """Return a reason such as `AlreadyExists` as a code such as `already-exists`."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in reason).lstrip("-")


def bad_request(message: str) -> ApiRefusal:
    """Return the refusal (400) of a request that can't be understood."""
    return ApiRefusal(400, "BadRequest", message)


def unauthorized() -> ApiRefusal:
    """Return the refusal (401) of a request whose token is missing or unknown."""
    return ApiRefusal(401, "Unauthorized", "Unauthorized")


def not_found(resource: str, name: str) -> ApiRefusal:
    """Return the refusal (404) for a missing object; `resource` is a name such as `resourceslices.resource.k8s.io`."""
    return ApiRefusal(404, "NotFound", f'{resource} "{name}" not found', details=_details(resource, name))


def unknown_path() -> ApiRefusal:
    """Return the refusal (404) of a path under which nothing is served."""
    return ApiRefusal(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed(verb: str) -> ApiRefusal:
    """Return the refusal (405) of a verb that the path does not support."""
    return ApiRefusal(405, "MethodNotAllowed", f"the server does not allow {verb} on the requested resource")


def already_exists(resource: str, name: str) -> ApiRefusal:
    """Return the refusal (409) of a create because an object of this name exists."""
    return ApiRefusal(409, "AlreadyExists", f'{resource} "{name}" already exists', details=_details(resource, name))


def conflict(resource: str, name: str, why: str = "") -> ApiRefusal:
    """Return the refusal (409) of a write because the object has changed or a precondition has failed."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiRefusal(409, "Conflict", message, details=_details(resource, name))


def expired(wanted: int, oldest: int) -> ApiRefusal:
    """Return the refusal (410) of a watch because the history before `oldest` is gone."""
    return ApiRefusal(410, "Expired", f"too old resource version: {wanted} ({oldest})")


def list_expired(next_token: str) -> ApiRefusal:
    """Return the refusal (410) of an outdated continue token, with the token that continues in the present state."""
    message = "The provided continue parameter is too old to display a consistent list result."
    return ApiRefusal(410, "Expired", message, continue_token=next_token)


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiRefusal:
    """Return the refusal (422) of an object, with everything that is wrong with it."""
    texts = [f"{c.field}: {c.message}" for c in causes]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    full_kind = f"{kind}.{group}" if group else kind
    details = {"name": name, "group": group, "kind": kind, "causes": [c.wire() for c in causes]}
    return ApiRefusal(422, "Invalid", f'{full_kind} "{name}" is invalid: {listed}', details=details)


def unsupported_media_type(content_type: str) -> ApiRefusal:
    """Return the refusal (415) of a patch whose type is not supported."""
    return ApiRefusal(
        415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type!r}"
    )


def _details(resource: str, name: str) -> Wire:
    plural, _, group = resource.partition(".")
    return {"name": name, "group": group, "kind": plural}
