"""Review: an AdmissionReview comes in, one goes out. Two questions: are the configs right, and will selectors hurt?

Pure but for the fleet that it is given. Configs are judged by the node's own validation and refused; selectors are
never refused, only warned of. An object that is being deleted, or whose spec did not change, is let through.
Source: Kubernetes API admission.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from dra_driver.claims.config import validate
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.webhook.objects import KINDS, SelectorText, opaque_configs, selectors

API_VERSION = "admission.k8s.io/v1"
MOST_WARNINGS = 10
# The API server may cut a warning here, once there are many. Source: Kubernetes, admission webhooks, warnings.
WARNING_CHARACTERS = 256


class Linter(Protocol):
    """What is asked about selectors."""

    def warnings(self, kind: str, found: Iterable[SelectorText]) -> list[str]:
        """Say what will hurt, in a sentence each; empty while too little is known."""


def judge_configs(review: Any, driver: str) -> Wire:
    """Answer whether the configs for this driver are right. Raises: InputError("input.review")."""
    request = _request(review)
    kind, obj = _subject(request)
    if _is_settled(request):
        return _answer(request["uid"])
    # What is stored already must not hold up another change of its object.
    stored = [one.parameters for one in opaque_configs(kind, request.get("oldObject")) if one.driver == driver]
    faults = [
        fault
        for config in opaque_configs(kind, obj)
        if config.driver == driver and config.parameters not in stored
        for fault in validate(config.parameters, config.path)
    ]
    if not faults:
        return _answer(request["uid"])
    text = f"{driver} can't use this {kind}: {'; '.join(map(str, faults))}"
    # With details kubectl shows a line for each field, as it does for the API server's own validation.
    causes = [{"reason": "FieldValueInvalid", "field": one.path, "message": one.message} for one in faults]
    details = {"name": _name_of(request), "group": "resource.k8s.io", "kind": kind, "causes": causes}
    status = {"status": "Failure", "code": 422, "reason": "Invalid", "message": text, "details": details}
    return _answer(request["uid"], allowed=False, status=status)


def judge_selectors(review: Any, linter: Linter) -> Wire:
    """Answer with warnings about selectors; always allowed. Raises: InputError("input.review")."""
    request = _request(review)
    kind, obj = _subject(request)
    if _is_settled(request):
        return _answer(request["uid"])
    found = linter.warnings(kind, selectors(kind, obj))[:MOST_WARNINGS]
    return _answer(request["uid"], warnings=[_shortened(one) for one in found])


def _request(review: Any) -> Mapping[str, Any]:
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise InputError("review", "not an AdmissionReview: request.uid is missing")
    if review.get("apiVersion") != API_VERSION:
        raise InputError("review", f"AdmissionReview of {API_VERSION} expected, is {review.get('apiVersion')!r}")
    return request


def _subject(request: Mapping[str, Any]) -> tuple[str, Any]:
    """Give kind and object; a kind that is none of ours has nothing to judge."""
    kind = request.get("kind")
    name = kind.get("kind") if isinstance(kind, dict) else None
    return (name, request.get("object")) if name in KINDS else (KINDS[0], None)


def _name_of(request: Mapping[str, Any]) -> str:
    """Give the object's name, or what its name will begin with."""
    metadata = request["object"].get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    return next((one for key in ("name", "generateName") if isinstance(one := names.get(key), str) and one), "")


def _is_settled(request: Mapping[str, Any]) -> bool:
    """Say whether there is nothing to stop: what is going away, or a change of labels, must not be held up."""
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


def _shortened(text: str) -> str:
    return text if len(text) <= WARNING_CHARACTERS else f"{text[: WARNING_CHARACTERS - 1]}…"
