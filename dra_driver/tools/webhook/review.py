"""Answer one AdmissionReview with another: are configs valid, and will selectors or images cause trouble?

Pure except for the fleet that it is given. Configs go through the node's own validation and may be refused; selectors
and pods are never refused, only warned of. An object that is being deleted, or whose spec did not change, is allowed.
Source: Kubernetes API admission.k8s.io/v1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from dra_driver.base.errors import OPAQUE_PARAMETERS_BYTES, InputError
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.base.versions import Semver, SemverError, normalize
from dra_driver.base.wire import Wire
from dra_driver.node.claims.config import validate
from dra_driver.node.claims.device_config import ConfigFault
from dra_driver.selectors.advice.findings import LintFinding
from dra_driver.selectors.values.values import EvaluationCancelledError

# Find configs and selectors in claims, templates and classes, in every version of their API.

KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """One opaque config: its parameters and their path."""

    path: str
    driver: str
    parameters: Any


@dataclass(frozen=True, slots=True)
class SelectorText:
    """One CEL selector: its path, and the class of the devices (for a class, the class itself)."""

    path: str
    expression: str
    class_name: str
    is_first: bool
    is_last: bool


def opaque_configs(kind: str, obj: Any) -> Iterator[OpaqueConfig]:
    """Yield the opaque configs of an object, whatever their driver."""
    at, holder = device_part(kind, obj)
    for index, entry in enumerate(items(holder.get("config"))):
        opaque = mapping(entry.get("opaque"))
        if isinstance(opaque.get("driver"), str):
            yield OpaqueConfig(f"{at}config[{index}].opaque.parameters", opaque["driver"], opaque.get("parameters"))


def selectors(kind: str, obj: Any) -> Iterator[SelectorText]:
    """Yield the CEL selectors of an object."""
    at, holder = device_part(kind, obj)
    if kind == "DeviceClass":
        name = mapping(mapping(obj).get("metadata")).get("name")
        yield from _of_request(holder, at, str(name or ""))
        return
    for index, request in enumerate(items(holder.get("requests"))):
        where = f"{at}requests[{index}]."
        for field in ("exactly", "firstAvailable"):
            value = request.get(field)
            for number, part in enumerate(items(value) if field == "firstAvailable" else [mapping(value)]):
                suffix = f"{field}[{number}]." if field == "firstAvailable" else f"{field}."
                yield from _of_request(part, where + suffix, _class_of(part))
        yield from _of_request(request, where, _class_of(request))


def _of_request(request: Mapping[str, Any], at: str, class_name: str) -> Iterator[SelectorText]:
    entries = items(request.get("selectors"))
    for index, entry in enumerate(entries):
        expression = mapping(entry.get("cel")).get("expression")
        if isinstance(expression, str):
            path = f"{at}selectors[{index}]"
            yield SelectorText(path, expression, class_name, index == 0, index == len(entries) - 1)


def device_part(kind: str, obj: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the part that holds configs and requests (or selectors), and its path."""
    spec = mapping(mapping(obj).get("spec"))
    if kind == "DeviceClass":
        return "spec.", spec
    if kind == "ResourceClaimTemplate":
        return "spec.spec.devices.", mapping(mapping(spec.get("spec")).get("devices"))
    return "spec.devices.", mapping(spec.get("devices"))


def _class_of(request: Mapping[str, Any]) -> str:
    name = request.get("deviceClassName")
    return name if isinstance(name, str) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, empty ones for its other values; nothing for any other value."""
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []


# The deadline of a review: how long it may be worked on, and whether the caller still waits for it.

SECONDS = 0.8  # for all selectors of a review together; the API server waits 1 s


class CallerGoneError(EvaluationCancelledError):
    """The caller does not wait for the answer any more."""


class ReviewDeadline:
    """The time that one review may still take. `is_gone` returns whether its caller has closed the connection."""

    def __init__(
        self,
        seconds: float = SECONDS,
        *,
        is_gone: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._is_gone = clock, is_gone
        self._until = clock() + seconds

    @property
    def left_s(self) -> float:
        """The number of seconds left."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Return if the work should go on. Raises: EvaluationCancelledError, CallerGoneError."""
        if self._clock() >= self._until:
            raise EvaluationCancelledError
        self.check_caller()

    def check_caller(self) -> None:
        """Return if the caller is still there. Raises: CallerGoneError."""
        if self._is_gone():
            raise CallerGoneError


# The texts of a review, cut to a length that people read and API servers pass on.

MAX_WARNINGS = 10
# The API server may cut a warning here, once there are many. Source: Kubernetes, admission webhooks, warnings.
WARNING_CHARACTERS = 256
MAX_FAULTS = 20
_PATH_CHARACTERS = 200
_MESSAGE_CHARACTERS = 200
_NAME_CHARACTERS = 253  # of an object. Source: Kubernetes, DNS subdomain names
_FAULT_BYTES = 4096  # for all faults together; 20 faults of ordinary length fit


@dataclass(frozen=True, slots=True)
class SelectorWarning:
    """A warning about a selector: the message, a better expression or "", and the rule of lint."""

    message: str
    better: str
    rule: str


def to_warning(finding: LintFinding) -> SelectorWarning:
    """Return the warning for a finding. A better expression that is too long to be passed on is dropped."""
    fix = finding.fix if finding.fix and finding.is_safe else ""
    better = fix if len(fix) < WARNING_CHARACTERS else ""
    return SelectorWarning(shortened(finding.message, WARNING_CHARACTERS), better, finding.rule)


def warnings_of(path: str, warning: SelectorWarning) -> Iterator[str]:
    """Yield the texts of a warning. The better expression is never cut: if it does not fit, it gets its own text."""
    alone = f"{path}: {warning.message} [{warning.rule}]"
    whole = f"{path}: {warning.message}; better: {warning.better} [{warning.rule}]"
    rest = f"{path}: better: {warning.better}"
    if warning.better and len(whole) <= WARNING_CHARACTERS:
        yield shortened(whole, WARNING_CHARACTERS)
        return
    yield shortened(alone, WARNING_CHARACTERS)
    if warning.better and len(rest) <= WARNING_CHARACTERS:
        yield shortened(rest, WARNING_CHARACTERS)


def refusal(kind: str, driver: str, name: str, faults: Iterable[ConfigFault]) -> Wire:
    """Return the status of a refusal. The faults are read only up to the number that is reported."""
    reported: list[tuple[str, str]] = []
    room, is_more = _FAULT_BYTES, False
    for fault in faults:
        path, message = shortened(fault.path, _PATH_CHARACTERS), shortened(fault.message, _MESSAGE_CHARACTERS)
        room -= len(path.encode()) + len(message.encode())
        if reported and (len(reported) == MAX_FAULTS or room < 0):
            is_more = True
            break
        reported.append((path, message))
    more = "; and more" if is_more else ""
    text = f"{driver} can't use this {kind}: {'; '.join(f'{path}: {message}' for path, message in reported)}{more}"
    # If there are details, kubectl shows a line for each field, as for the API server's own validation.
    causes = [{"reason": "FieldValueInvalid", "field": path, "message": message} for path, message in reported]
    named = shortened(name, _NAME_CHARACTERS)
    details = {"name": named, "group": "resource.k8s.io", "kind": kind, "causes": causes}
    return {"status": "Failure", "code": 422, "reason": "Invalid", "message": text, "details": details}


def shortened(text: str, maximum: int) -> str:
    """Return a text cut to a length; half of a surrogate pair, which is no character, becomes a question mark."""
    cut = text if len(text) <= maximum else f"{text[: maximum - 1]}…"
    return cut if cut.isprintable() else cut.encode("utf-8", "replace").decode()


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


# The CUDA version that a pod's images need, as far as the pod states it.

VARIABLE, ANNOTATION = "NVIDIA_REQUIRE_CUDA", "gpu.nvidia.com/cuda-required"
_NUMBERS = r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}"
_CONSTRAINT = re.compile(rf"(?P<name>cuda|driver)(?P<relation>>=|<=|==|!=|=|<|>)(?P<version>{_NUMBERS})")
_ORDINARY = re.compile(_NUMBERS)
_MAX_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class CudaRequirement:
    """A need: the lowest CUDA version, what states it, and the alternatives, each a list of constraints."""

    version: str
    stated_by: str
    alternatives: tuple[tuple[str, ...], ...]

    @property
    def selector(self) -> str:
        """The CEL expression that matches only devices whose driver is new enough."""
        version = normalize(self.version)
        return f'device.attributes["{NVIDIA_DRIVER}"].cudaDriverVersion.compareTo(semver("{version}")) >= 0'

    def is_met_by(self, cuda: Semver, driver: Semver | None) -> bool:
        """Return whether a driver meets the need. What can't be judged here, such as a brand, counts as met."""
        known = {"cuda": cuda, "driver": driver}
        return any(all(_holds(one, known) for one in alternative) for alternative in self.alternatives)


def cuda_requirements(wire: Wire) -> Iterator[CudaRequirement]:
    """Yield the needs that a pod, or the metadata of another object, states."""
    annotations = (wire.get("metadata") or {}).get("annotations") or {}
    stated = annotations.get(ANNOTATION) if isinstance(annotations, Mapping) else None
    if isinstance(stated, str) and _ORDINARY.fullmatch(stated):
        yield CudaRequirement(stated, f"annotation {ANNOTATION}", ((f"cuda>={stated}",),))
    spec = wire.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for entry in container.get("env") or ():
            if entry.get("name") == VARIABLE and isinstance(entry.get("value"), str):
                yield from _of_variable(entry["value"], f"container {container.get('name')}: {VARIABLE}")


def _of_variable(text: str, stated_by: str) -> Iterator[CudaRequirement]:
    alternatives = tuple(tuple(part.split(",")) for part in text[:_MAX_CHARACTERS].split())
    least = [
        found["version"]
        for alternative in alternatives
        for one in alternative
        if (found := _CONSTRAINT.fullmatch(one)) and found["name"] == "cuda" and found["relation"] in {">=", ">", "="}
    ]
    if least:
        yield CudaRequirement(min(least, key=_version), stated_by, alternatives)


def _version(text: str) -> Semver:
    return Semver.parse(normalize(text))


def _holds(constraint: str, known: Mapping[str, Semver | None]) -> bool:
    found = _CONSTRAINT.fullmatch(constraint)
    have = known[found["name"]] if found else None
    if found is None or have is None:
        return True
    try:
        wanted = _version(found["version"])
    except SemverError:
        return True
    order = have.compare(wanted)
    holds = {
        ">=": order >= 0, "<=": order <= 0, ">": order > 0, "<": order < 0, "!=": order != 0,
    }  # fmt: skip
    return holds.get(found["relation"], order == 0)
