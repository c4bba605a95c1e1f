"""Turn what the API server answers into wire objects, events of a watch, or an `ApiError`, which callers handle.

How much memory a document takes once it is parsed is estimated before: 8 MiB can become 300 MiB of Python objects
(`[],[],…`), so its length alone is no limit. Counting single characters takes about a thousandth of the time of
parsing; characters within strings are counted too, so the estimate is rather too high.
Source: Kubernetes API conventions, "HTTP Status codes" and the Status object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.wire import ClaimWire, SliceWire, Wire

# What each character may stand for in CPython 3.11 to 3.14 on 64 bits, in bytes: an object with its first entries, a
# list, an entry's share of a table, a value and its place in a list, half of a string's header.
_COSTS = ((b"{", 184), (b":", 64), (b"[", 80), (b",", 40), (b'"', 28))
COSTLIEST = 1 + max(cost for _, cost in _COSTS)  # bytes of memory that a byte of a document takes at most
_WIDEST_CHARACTER = 4  # bytes that each character of a string takes if one of them is outside the basic plane
# HTTP status -> (code, whether the same request can succeed later, what to do). Webhooks deny with 400 and policies
# with 422 as well, so even these may end without a change of what is sent.
_CODES: dict[int, tuple[str, Retry, str]] = {
    400: ("bad-request", Retry.LATER, ""),
    401: ("unauthorized", Retry.LATER, "the token is not accepted: check the ServiceAccount or the kubeconfig"),
    403: (
        "forbidden",
        Retry.LATER,
        "no RBAC rule allows it, or a policy refuses: the server names the missing right",
    ),
    404: ("not-found", Retry.LATER, ""),
    408: ("timeout", Retry.NOW, ""),
    409: ("conflict", Retry.NOW, ""),
    410: ("gone", Retry.NOW, ""),
    413: ("too-large", Retry.LATER, ""),
    422: ("invalid", Retry.LATER, ""),
    429: ("too-many-requests", Retry.NOW, ""),
}
# A 404 without a Status object proves nothing about the object: a proxy may have sent it, or a server that lacks the
# API group.
_NOT_SERVED = ("not-served", Retry.NOW, "check the server's address; resource.k8s.io/v1 is served from 1.34 on")
FORBIDDEN = "api.forbidden"  # the server knows who asks, and does not permit it
NOT_FOUND = "api.not-found"  # the server has no such object
CONFLICT = "api.conflict"  # another client wrote the object meanwhile, or it exists already
MEMORY_BYTES = 32 << 20  # of one parsed answer; a page of a list that is larger is requested again with fewer objects
_MESSAGE_CHARS = 500
_WAIT_MAX_SECONDS = 300  # an API server never asks for more, and a longer wait would stop all publishing and preparing
_DIGITS = 9

Parse = Callable[[bytes], Any]


def memory_of(document: bytes) -> int:
    """Return about how many bytes of memory a document takes once it is parsed, the text itself included."""
    is_plain = document.isascii() and b"\\u" not in document
    text = len(document) if is_plain else _WIDEST_CHARACTER * len(document)
    return text + sum(document.count(character) * cost for character, cost in _COSTS)


def _refuse_constant(name: str) -> Any:
    """Refuse a constant that Python's reader accepts as a number but JSON does not have. Raises: ValueError."""
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text[:40]} is too large for a JSON number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


class TooMuchMemoryError(ValueError):
    """A document would take more memory than is allowed once it is parsed."""


def parse(body: bytes, *, memory: int = MEMORY_BYTES) -> Any:
    """Read JSON that takes at most about `memory` bytes once it is read.

    Raises: TooMuchMemoryError; ValueError, also for text that is nested too deeply, NaN, infinities and 1e999.
    """
    if len(body) * COSTLIEST > memory and memory_of(body) > memory:
        raise TooMuchMemoryError(f"{len(body)} bytes would take more than {memory >> 20} MiB of memory")
    try:
        return _DECODER.decode(body.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode(status: int, body: bytes, retry_after: str, *, method: str, path: str, parse: Parse = parse) -> Wire:
    """Return the object of an answer.

    Raises: ApiError if the status is not a success, or if the body is not a JSON object.
    """
    try:
        answer = parse(body)
    except TooMuchMemoryError as err:
        if status < 300:
            what = f"{method} {path}: the answer ({status}) is too large: {err}"
            raise ApiError("answer-too-large", what, retry=Retry.LATER) from err
        answer = None
    except ValueError as err:
        if status < 300:
            raise bad_answer(f"{method} {path}: the answer ({status}) is not a JSON object: {err}", status) from err
        answer = None
    if not 200 <= status < 300:
        raise refusal(status, answer, retry_after, method=method, path=path)
    if not isinstance(answer, dict):
        raise bad_answer(f"{method} {path}: the answer ({status}) is a {_kind(answer)}, not a JSON object", status)
    return answer


def bad_answer(message: str, status: int = 0) -> ApiError:
    """Return the error for an answer that no API server should send."""
    return ApiError("bad-answer", message[:_MESSAGE_CHARS], status=status, retry=Retry.NOW)


def refusal(status: int, answer: Any, retry_after: str, *, method: str, path: str) -> ApiError:
    """Return the error for a refused request; `answer` is its decoded body, a Status object from a healthy server."""
    fallback = ("unavailable", Retry.NOW, "") if status >= 500 else ("refused", Retry.NEVER, "")
    code, retry, hint = _CODES.get(status, fallback)
    body = answer if isinstance(answer, dict) else {}
    if status == 409 and body.get("reason") == "AlreadyExists":
        code, retry = "already-exists", Retry.NEVER
    if status == 404 and body.get("kind") != "Status":
        code, retry, hint = _NOT_SERVED
    message = str(body.get("message") or body.get("reason") or "no message")[:_MESSAGE_CHARS]
    return ApiError(
        code,
        f"{method} {path}: {status} {message}",
        status=status,
        hint=hint,
        retry=retry,
        retry_after_s=_seconds(retry_after, body),
        continue_token=_continue_token(body),
    )


def _kind(answer: Any) -> str:
    return "list" if isinstance(answer, list) else type(answer).__name__


def _continue_token(body: Wire) -> str:
    metadata = body.get("metadata")
    token = metadata.get("continue") if isinstance(metadata, dict) else ""
    return token if isinstance(token, str) else ""


def _seconds(retry_after: str, body: Wire) -> float:
    """Return how many seconds the server asks us to wait, from the header or else from the Status object's details."""
    details = body.get("details")
    inside = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    if retry_after.isascii() and retry_after.isdigit():
        inside = int(retry_after[:_DIGITS])
    return float(min(max(inside, 0), _WAIT_MAX_SECONDS)) if isinstance(inside, int) else 0.0


# Check that an object of the API server has the shape of its kind, as far as this driver reads it.

_NAME_CHARACTERS = 253
_NOUNS = {str: "a string", int: "a whole number", bool: "true or false"}


def _check(value: Any, shape: Any, where: str) -> None:
    """Raise ApiError("api.bad-answer") for the first part of a value that does not have its shape."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _fault(where, "an object", value)
        for key, inner in shape.items():
            if key is ...:
                for name, field in value.items():
                    _check(field, inner, f"{where}.{name}")
                continue
            name = key.removesuffix("!")
            field = value.get(name)
            if field is not None or key.endswith("!"):
                _check(field, inner, f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _fault(where, "a list", value)
        for number, entry in enumerate(value):
            _check(entry, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
        raise _fault(where, _NOUNS[shape], value)


def _fault(where: str, expected: str, found: Any) -> ApiError:
    noun = {dict: "an object", list: "a list", type(None): "nothing"}.get(type(found)) or repr(found)[:50]
    return bad_answer(f"{where} should be {expected}, the server sent {noun}")


# A dict stands for an object with these fields (with `...`, for one with any fields that all have this shape), a list
# for a list of such values; "!" marks a required field.
_METADATA = {"name!": str, "uid!": str, "resourceVersion": str, "labels": {...: str}, "annotations": {...: str}}
_DEVICE = {
    "name!": str,
    "attributes": {...: {}},
    "capacity": {...: {}},
    "taints": [{"key": str, "value": str, "effect": str}],
    "consumesCounters": [{"counterSet": str, "counters": {...: {}}}],
}
_SLICE = {
    "metadata!": _METADATA,
    "spec!": {
        "driver!": str,
        "nodeName": str,
        "pool!": {"name!": str, "generation": int, "resourceSliceCount": int},
        "devices": [_DEVICE],
        "sharedCounters": [{"name": str, "counters": {...: {}}}],
    },
}
_RESULT = {"request": str, "driver!": str, "pool!": str, "device!": str, "shareID": str, "adminAccess": bool}
_ALLOCATION = {"devices": {"results": [_RESULT], "config": [{}]}, "nodeSelector": {}}
_CLAIM = {
    "metadata!": {**_METADATA, "namespace!": str},
    "spec": {},  # it decides nothing on a node
    "status": {"allocation": _ALLOCATION, "reservedFor": [{"name": str, "uid": str}], "devices": [{}]},
}
_NODE = {"metadata!": _METADATA, "spec": {}, "status": {"allocatable": {}, "capacity": {}, "nodeInfo": {}}}


def check_slice(wire: SliceWire, *, is_stored: bool = True) -> None:
    """Check a ResourceSlice; one that was not stored has no resourceVersion. Raises: ApiError("api.bad-answer")."""
    _check(wire, _SLICE, "ResourceSlice")
    metadata = wire["metadata"]
    if is_stored:
        _check(metadata.get("resourceVersion"), str, "ResourceSlice.metadata.resourceVersion")
    if max(len(metadata.get(name) or "") for name in ("name", "uid", "resourceVersion")) > _NAME_CHARACTERS:
        raise bad_answer(
            f"a ResourceSlice has a name, uid or resourceVersion of more than {_NAME_CHARACTERS} characters"
        )


def check_claim(wire: ClaimWire, namespace: str, name: str) -> None:
    """Check a ResourceClaim, and that it is the requested one. Raises: ApiError("api.bad-answer")."""
    _check(wire, _CLAIM, f"ResourceClaim {namespace}/{name}")
    found = wire["metadata"]["namespace"], wire["metadata"]["name"]
    if found != (namespace, name):
        raise bad_answer(f"asked for ResourceClaim {namespace}/{name}, the server answered with {'/'.join(found)}")


def check_node(wire: Wire, name: str) -> None:
    """Check a Node, and that it is the requested one. Raises: ApiError("api.bad-answer")."""
    _check(wire, _NODE, f"Node {name}")
    if wire["metadata"]["name"] != name:
        raise bad_answer(f"asked for Node {name}, the server answered with {wire['metadata']['name']}")


# Watch events: what a watch yields, and the events in the lines of the server's stream.

EVENT_MEMORY = 16 << 20  # of one parsed event


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of everything that exists, as of `resource_version`.

    `is_first`: forget the pages before it. `is_last`: an object in none of the pages since the first is gone.
    """

    objects: tuple[Wire, ...]
    resource_version: str
    is_first: bool = True
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Changed:
    """One object was added or modified."""

    wire: Wire


@dataclass(frozen=True, slots=True)
class Deleted:
    """One object is gone; `wire` is its last state."""

    wire: Wire


@dataclass(frozen=True, slots=True)
class Connected:
    """A stream was opened: the server may not be the same as before, or may have a newer version.

    `is_renewal`: the last stream ended when it was asked to, so there is no sign of such a change.
    """

    is_renewal: bool = False


Event = Listed | Changed | Deleted | Connected


def read_line(line: bytes) -> tuple[str, Wire]:
    """Return the type and the object of the event in a line. Raises: ValueError for an invalid one."""
    event = parse(line, memory=EVENT_MEMORY)
    if not isinstance(event, dict):
        raise ValueError("it is not an object")  # noqa: TRY004  one kind of error for every invalid event
    kind, wire = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(wire, dict):
        raise ValueError("it has no type, or no object")  # noqa: TRY004
    metadata = wire.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if kind != "ERROR" and not (isinstance(version, str) and version):
        raise ValueError("its object has no resourceVersion")
    return kind, wire
