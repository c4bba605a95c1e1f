"""Answer one AdmissionReview with another: are configs valid, and will selectors or images cause trouble?

Pure except for the fleet that it is given. Configs go through the node's own validation and may be refused; selectors
and pods are never refused, only warned of. An object that is being deleted, or whose spec did not change, is allowed.
Source: Kubernetes API admission.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Protocol

from dra_driver.claims.config.device_config import ConfigFault
from dra_driver.claims.config.reading import validate
from dra_driver.model.errors import InputError
from dra_driver.model.limits import OPAQUE_PARAMETERS_BYTES
from dra_driver.model.wire import Wire
from dra_driver.webhook.objects import KINDS, OpaqueConfig, SelectorText, opaque_configs, selectors
from dra_driver.webhook.review_deadline import ReviewDeadline
from dra_driver.webhook.wording import MAX_WARNINGS, WARNING_CHARACTERS, refusal, shortened

API_VERSION = "admission.k8s.io/v1"
_MAX_CONFIGS = 32  # of an object. Source: Kubernetes API resource/v1 DeviceConfigMaxSize
_MAX_UID_CHARACTERS = 256  # the API server's UIDs have 36


class Linter(Protocol):
    """The source of warnings about selectors."""

    def warnings(self, kind: str, found: Iterable[SelectorText], deadline: ReviewDeadline | None = None) -> list[str]:
        """Return one sentence for each problem of the selectors; none while too little is known."""


class Advisor(Protocol):
    """A source of warnings about pods: about their images, or about their claims."""

    def warnings(self, pod: Any, namespace: str) -> list[str]:
        """Return one sentence for each problem of a pod, or of what makes pods; none while too little is known."""


def review_configs(review: Any, drivers: Collection[str]) -> Wire:
    """Answer whether the configs for these drivers are valid. Raises: InputError("input.review")."""
    request = _request(review)
    kind, _ = _subject(request)
    if _needs_no_review(request):
        return _answer(request["uid"])
    faults = _faults(kind, request, drivers)
    first = next(faults, None)
    if first is None:
        return _answer(request["uid"])
    status = refusal(kind, ", ".join(drivers), _name_of(request), chain((first,), faults))
    return _answer(request["uid"], allowed=False, status=status)


def review_selectors(review: Any, linter: Linter, deadline: ReviewDeadline | None = None) -> Wire:
    """Answer with warnings about selectors; the object is always allowed.

    Raises: InputError("input.review"); CallerGoneError if the caller does not wait for the answer any more.
    """
    request = _request(review)
    kind, obj = _subject(request)
    if _needs_no_review(request):
        return _answer(request["uid"])
    found = linter.warnings(kind, selectors(kind, obj), deadline)[:MAX_WARNINGS]
    return _answer(request["uid"], warnings=[shortened(one, WARNING_CHARACTERS) for one in found])


_WRITES = ("CREATE", "UPDATE")
POD_MAKERS: Mapping[str, tuple[str, ...]] = {
    "Pod": ("CREATE",),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"), _WRITES),
}


def review_pods(review: Any, *advisors: Advisor) -> Wire:
    """Answer with warnings about a new pod, or about an object that makes pods; it is always allowed.

    Raises: InputError("input.review").
    """
    request = _request(review)
    kind = request.get("kind")
    operations = POD_MAKERS.get(str(kind.get("kind")), ()) if isinstance(kind, dict) else ()
    if request.get("operation") not in operations or _needs_no_review(request):
        return _answer(request["uid"])
    pod, namespace = request["object"], str(request.get("namespace") or "")
    found = [text for advisor in advisors for text in advisor.warnings(pod, namespace)][:MAX_WARNINGS]
    return _answer(request["uid"], warnings=[shortened(one, WARNING_CHARACTERS) for one in found])


def refuse_unread(uid: str) -> Wire:
    """Refuse an object with too many values to read, because an invalid config could be hidden among them."""
    status = refusal("object", "the webhook", "", (ConfigFault("object", "holds more values than any valid object"),))
    return _answer(uid, allowed=False, status=status)


def allow_unread(uid: str) -> Wire:
    """Allow an object with too many values to read, with a warning."""
    return _answer(uid, warnings=["the object holds more values than any valid object: it is not judged"])


def _faults(kind: str, request: Mapping[str, Any], drivers: Collection[str]) -> Iterator[ConfigFault]:
    """Yield the faults of configs one after the other, so that a caller may stop early."""
    # A config that is already stored must not block another change of its object.
    before = islice(opaque_configs(kind, request.get("oldObject")), _MAX_CONFIGS)
    stored = [(one.driver, one.parameters) for one in before if one.driver in drivers]
    for index, config in enumerate(opaque_configs(kind, request.get("object"))):
        if index == _MAX_CONFIGS:
            yield ConfigFault(config.path, f"must be one of at most {_MAX_CONFIGS} configs")
            return
        if config.driver in drivers and (config.driver, config.parameters) not in stored:
            yield from _faults_of(config)


def _faults_of(config: OpaqueConfig) -> list[ConfigFault]:
    # Python's text of a value is never shorter than its JSON, and is made much faster than the bytes are counted.
    is_short = len(repr(config.parameters)) <= OPAQUE_PARAMETERS_BYTES
    if not is_short and _least_bytes(config.parameters) > OPAQUE_PARAMETERS_BYTES:
        return [ConfigFault(config.path, f"must not be longer than {OPAQUE_PARAMETERS_BYTES} bytes")]
    return validate(config.parameters, config.path, config.driver)


def _least_bytes(value: Any) -> int:
    """Return the least number of bytes that a value takes, however it is written; counting stops beyond the limit."""
    count, pending = 0, [value]
    while pending and count <= OPAQUE_PARAMETERS_BYTES:
        one = pending.pop()
        if isinstance(one, str):
            count += len(one) + 2
            continue
        count += 1
        if isinstance(one, dict):
            count += sum(len(key) + 3 for key in one)
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)
    return count


def _request(review: Any) -> Mapping[str, Any]:
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise InputError("review", "not an AdmissionReview: request.uid is missing")
    if len(request["uid"]) > _MAX_UID_CHARACTERS:
        raise InputError("review", "not an AdmissionReview: request.uid is too long")
    if review.get("apiVersion") != API_VERSION:
        raise InputError("review", f"AdmissionReview of {API_VERSION} expected")
    return request


def _subject(request: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the kind and the object; for a kind that is not handled here, a kind without an object."""
    kind = request.get("kind")
    name = kind.get("kind") if isinstance(kind, dict) else None
    return (name, request.get("object")) if name in KINDS else (KINDS[0], None)


def _name_of(request: Mapping[str, Any]) -> str:
    """Return the object's name, or the prefix that its name will be generated from."""
    metadata = request["object"].get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    return next((one for key in ("name", "generateName") if isinstance(one := names.get(key), str) and one), "")


def _needs_no_review(request: Mapping[str, Any]) -> bool:
    """Return whether the object is being deleted or only its metadata changed, which must not be blocked."""
    new, old = request.get("object"), request.get("oldObject")
    if request.get("operation") == "DELETE" or not isinstance(new, dict):
        return True
    metadata = new.get("metadata")
    if isinstance(metadata, dict) and metadata.get("deletionTimestamp"):
        return True
    return request.get("operation") == "UPDATE" and isinstance(old, dict) and new.get("spec") == old.get("spec")


def _answer(uid: str, *, allowed: bool = True, **more: Any) -> Wire:
    response = {"uid": uid, "allowed": allowed, **{key: value for key, value in more.items() if value}}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
