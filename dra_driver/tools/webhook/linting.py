"""Lint at admission: evaluate selectors on the shapes of the fleet, and warn their authors.

In: selectors with their paths, and the deadline of the review. Out: warnings, or none for objects that have nothing to
do with this driver. One review is worked on at a time, until its deadline; a warning says which selectors could not be
judged by then. The warnings about an expression are kept until the fleet changes, so that a thousand equal claims cost
one evaluation.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol

from dra_driver.base.errors import ApiError, DriverError
from dra_driver.base.machine import FifoCache
from dra_driver.base.names import is_dns_label, is_dns_subdomain
from dra_driver.base.versions import Semver
from dra_driver.base.wire import Wire
from dra_driver.kube.paths import CLAIMS, TEMPLATES, named, within
from dra_driver.selectors.advice.findings import LintFinding, LintSubject, outcomes
from dra_driver.selectors.advice.lint import guarded_remedy, lint
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.functions.strings import compile_pattern
from dra_driver.selectors.kubernetes import KubernetesEngine, KubernetesSelector
from dra_driver.selectors.values.values import EvaluationCancelledError, cancellable
from dra_driver.tools.webhook.fleet import PublishedFleet, is_identity
from dra_driver.tools.webhook.review import (
    ANNOTATION,
    MAX_WARNINGS,
    VARIABLE,
    CallerGoneError,
    CudaRequirement,
    ReviewDeadline,
    SelectorText,
    SelectorWarning,
    cuda_requirements,
    device_part,
    items,
    mapping,
    to_warning,
    warnings_of,
)

# The findings of which an author is warned while writing a manifest; the rest is for `dra-driver cel lint`.
WARNED_RULES = frozenset(
    {
        "unguarded-attribute",
        "runtime-error",
        "missing-driver-guard",
        "always-false",
        "string-version",
        "quantity-equality",
        "bad-literal",
        "wrong-type",
        "cost-limit",
        "deprecated-name",
        "unknown-name",
        "two-drivers",
    }
)
_MAX_KNOWN = 1024
_ABOUT_VALUES = frozenset({"always-false", "always-true"})
_ABOUT_ALL = frozenset({*_ABOUT_VALUES, "unknown-name"})  # does not apply to devices that are only partly known
_GUARDS = frozenset({"unguarded-attribute"})
_WAIT_SECONDS = 0.3  # to wait for another review to end
_FAIR_SECONDS = 0.5  # an evaluation that had this long and did not end is not tried again until the fleet changes
NOT_JUDGED = SelectorWarning("not judged: evaluating it takes too long", "", "not-judged")


@dataclass(frozen=True, slots=True)
class _ClassDevices:
    """The devices that a class accepts, and whether these are all."""

    views: tuple[DeviceView, ...]
    counts: tuple[int, ...]
    is_whole: bool


class FleetLinter:
    """Lint selectors on a fleet. Any thread may ask."""

    def __init__(self, fleet: PublishedFleet, drivers: Sequence[str], *, kubernetes: str) -> None:
        self._fleet, self._drivers = fleet, drivers
        self._engine = KubernetesEngine(kubernetes)
        self._turn = threading.Lock()  # held by the review that is being worked on
        self._memory_lock = threading.Lock()
        self._warnings_by_key: dict[bytes, tuple[SelectorWarning, ...]] = {}
        self._devices_by_class: dict[tuple[int, str], _ClassDevices] = {}
        self._version = -1

    def warnings(self, kind: str, found: Iterable[SelectorText], deadline: ReviewDeadline | None = None) -> list[str]:
        """Return one sentence for each problem; none until the fleet is known. Raises: CallerGoneError."""
        if not self._fleet.is_known:
            return []
        sentences: list[str] = []
        deadline = deadline or ReviewDeadline()
        with _Turn(self._turn) as turn:
            for text in found:
                if self._is_relevant(kind, text):
                    for one in self._warnings_about(kind, text, turn, deadline):
                        sentences += warnings_of(text.path, one)
                if len(sentences) >= MAX_WARNINGS or turn.was_missed:
                    break
        return sentences[:MAX_WARNINGS]

    def _is_relevant(self, kind: str, text: SelectorText) -> bool:
        """Return whether a selector names a driver of this release, or belongs to a request for a class that does."""
        if self._names_driver_of_ours(text.expression):
            return True
        if kind == "DeviceClass":
            return False
        return any(map(self._names_driver_of_ours, self._fleet.selectors_of(text.class_name) or ()))

    def _names_driver_of_ours(self, expression: str) -> bool:
        return any(driver in expression for driver in self._drivers)

    def _warnings_about(
        self, kind: str, text: SelectorText, turn: _Turn, deadline: ReviewDeadline
    ) -> tuple[SelectorWarning, ...]:
        key = _key(kind, text)
        known = self._recall(key) if deadline.left_s > 0 else None
        if known is not None:
            return known
        if not turn.wait(deadline):
            return (NOT_JUDGED,)
        return self._judge(key, kind, text, deadline)

    def _judge(
        self, key: bytes, kind: str, text: SelectorText, deadline: ReviewDeadline
    ) -> tuple[SelectorWarning, ...]:
        """Lint until the deadline, and remember the warnings. Raises: CallerGoneError."""
        version, began_s = self._fleet.version, deadline.left_s
        try:
            with cancellable(deadline.check):
                warnings = tuple(map(to_warning, self._lint(kind, text)[:MAX_WARNINGS]))
        except CallerGoneError:
            raise
        except EvaluationCancelledError:
            warnings = (NOT_JUDGED,)
            if began_s < _FAIR_SECONDS:
                return warnings  # the time was spent on the review's earlier selectors, so this one may be tried again
        with self._memory_lock:
            if self._version == version:
                self._warnings_by_key[key] = warnings
        return warnings

    def _recall(self, key: bytes) -> tuple[SelectorWarning, ...] | None:
        with self._memory_lock:
            if self._version != self._fleet.version or len(self._warnings_by_key) >= _MAX_KNOWN:
                self._warnings_by_key.clear()
                self._devices_by_class.clear()
                self._version = self._fleet.version
            return self._warnings_by_key.get(key)

    def _lint(self, kind: str, text: SelectorText) -> list[LintFinding]:
        try:
            accepted = self._devices_of("" if kind == "DeviceClass" else text.class_name)
            try:
                selector = self._engine.compile(text.expression)
            except SelectorCompileError as fault:
                return list(self._broken(text.expression, fault, accepted))
            subject = LintSubject(
                selector, self._engine, accepted.views, accepted.counts,
                in_class=kind == "DeviceClass", is_first=text.is_first, is_last=text.is_last,
            )  # fmt: skip
            found = lint(subject)
            return [one for one in found if one.rule in WARNED_RULES - _inapplicable_rules(selector, found, accepted)]
        except (SelectorCompileError, SelectorRuntimeError, DriverError, RecursionError, MemoryError):
            return []  # the API server's own validation reports it better

    def _broken(self, expression: str, fault: SelectorCompileError, accepted: _ClassDevices) -> Iterator[LintFinding]:
        """Yield a correction for an expression that does not compile, since the API server only refuses it."""
        found = guarded_remedy(expression, self._engine, accepted.views)
        if found is not None and found.better:
            message = f"it does not compile ({fault.kind} error): {'; '.join(found.sentences)}"
            yield LintFinding("refused", message, expression, found.better, is_safe=True)

    def _devices_of(self, class_name: str) -> _ClassDevices:
        """Return the shapes that a class accepts, and how many devices each stands for."""
        expressions = self._fleet.selectors_of(class_name) or ()
        key = self._fleet.version, class_name if expressions else ""
        known = self._devices_by_class.get(key)
        if known is not None:
            return known
        selectors = [self._engine.compile(expression) for expression in expressions]
        kept = [shape for shape in self._fleet.shapes() if _passes(selectors, shape.view)]
        is_whole = not any(map(self._fleet.is_partly_known, {one.view.driver for one in kept}))
        made = _ClassDevices(tuple(one.view for one in kept), tuple(one.count for one in kept), is_whole)
        self._devices_by_class[key] = made
        return made


class _Turn:
    """The turn of one review to be worked on; `was_missed` is set once the review has waited for too long."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._is_mine, self.was_missed = lock, False, False

    def wait(self, deadline: ReviewDeadline) -> bool:
        """Wait for the turn, on the first call only; return whether it came, and time is left to work."""
        if not self._is_mine:
            self._is_mine = self._lock.acquire(timeout=min(_WAIT_SECONDS, deadline.left_s))
        self.was_missed = not self._is_mine or deadline.left_s <= 0
        return not self.was_missed

    def __enter__(self) -> _Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mine:
            compile_pattern.cache_clear()  # a hostile pattern can take megabytes
            self._lock.release()


def _passes(selectors: list[KubernetesSelector], view: DeviceView) -> bool:
    try:
        return all(selector.matches_view(view) for selector in selectors)
    except SelectorRuntimeError:
        return False


def _inapplicable_rules(
    selector: KubernetesSelector, found: list[LintFinding], accepted: _ClassDevices
) -> frozenset[str]:
    """Return the rules whose findings are dropped: they hold for the shapes, but maybe not for every device."""
    spared = _ABOUT_VALUES if _reads_identities(selector) else frozenset()
    if not accepted.is_whole:
        spared |= _ABOUT_ALL
    # An attribute that does not exist should be corrected, not guarded, so the advice to guard it is left out.
    is_misspelt = any(one.rule == "unknown-name" for one in found) and len(accepted.views) > 0
    is_hopeless = is_misspelt and all(isinstance(outcome, str) for outcome in outcomes(selector, accepted.views))
    return spared | _GUARDS if is_hopeless else spared


def _reads_identities(selector: KubernetesSelector) -> bool:
    """Return whether an expression reads an attribute that distinguishes devices of one shape, or all attributes."""
    reads = [read for read in selector.read_set.reads if read.field == "attributes"]
    return any(read.name is None or is_identity(read.name) for read in reads)


def _key(kind: str, text: SelectorText) -> bytes:
    """Return the key under which warnings are remembered: a digest, since the text may have 10 KiB."""
    parts = "\0".join((kind, text.class_name, f"{text.is_first:d}{text.is_last:d}", text.expression))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# Warnings about images: pods with claims whose images need a newer CUDA than some drivers of the cluster support.

_MAX_NEEDS = 4
_MAX_CONTAINERS = 64
_DriverDevices = tuple[Semver, Semver | None, int]  # CUDA version, driver version, number of devices


class ImageAdvisor:
    """Advises on the images of pods. Any thread may ask."""

    def __init__(self, fleet: PublishedFleet, drivers: Collection[str]) -> None:
        self._fleet, self._drivers = fleet, drivers

    def warnings(self, wire: Any, _namespace: str = "") -> list[str]:
        """Return the sentences about a pod or pod template: none if it has no claims or the fleet is not known yet."""
        wire = _relevant_part(pod_of(wire))
        if not wire["spec"]["resourceClaims"] or not self._fleet.is_known:
            return []
        served = list(self._driver_devices())
        found = dict.fromkeys(islice(cuda_requirements(wire), _MAX_NEEDS))
        return [sentence for need in found for sentence in _warnings_about(need, served)]

    def _driver_devices(self) -> Iterator[_DriverDevices]:
        for shape in self._fleet.shapes():
            held = shape.view.attributes.get(shape.view.driver) or {}
            cuda, driver = held.get("cudaDriverVersion"), held.get("driverVersion")
            if shape.view.driver in self._drivers and isinstance(cuda, Semver):
                yield cuda, driver if isinstance(driver, Semver) else None, shape.count


def _warnings_about(need: CudaRequirement, served: list[_DriverDevices]) -> Iterator[str]:
    old = [(cuda, count) for cuda, driver, count in served if not need.is_met_by(cuda, driver)]
    if old:
        short, every = sum(count for _, count in old), sum(count for _, _, count in served)
        yield (
            f"{need.stated_by} needs CUDA {need.version}, but {short} of the cluster's {every} devices have a driver "
            f"that supports less (the oldest CUDA {min(cuda for cuda, _ in old)})"
        )
        yield f"unless its claims already ask for such a driver, add to their selectors: {need.selector}"


def pod_of(wire: Any) -> Wire:
    """Return a pod, or the pod template of a workload or of a CronJob."""
    found = _mapping(wire)
    job = _mapping(_mapping(found.get("spec")).get("jobTemplate")) or found
    return _mapping(_mapping(job.get("spec")).get("template")) or found


def _relevant_part(pod: Any) -> Wire:
    """Return the parts of a pod that matter here: what it states about its CUDA need, and its claims.

    Values of an unexpected type are left out.
    """
    spec, metadata = _mapping(_mapping(pod).get("spec")), _mapping(_mapping(pod).get("metadata"))
    annotation = _mapping(metadata.get("annotations")).get(ANNOTATION)
    lists = {field: [_container(one) for one in _items(spec.get(field))] for field in ("initContainers", "containers")}
    claims = _items(spec.get("resourceClaims"))
    return {"metadata": {"annotations": {ANNOTATION: annotation}}, "spec": lists | {"resourceClaims": claims}}


def _container(one: Wire) -> Wire:
    env = [
        {"name": VARIABLE, "value": entry.get("value")} for entry in _items(one.get("env")) if _is_cuda_variable(entry)
    ]
    return {"name": str(one.get("name")), "env": env}


def _is_cuda_variable(entry: Wire) -> bool:
    return entry.get("name") == VARIABLE


def _mapping(value: Any) -> Wire:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Wire]:
    return [one for one in value[:_MAX_CONTAINERS] if isinstance(one, dict)] if isinstance(value, list) else []


# Warnings about containers with several claims under MPS, of which only one works: a container has one MPS daemon.

_REVIEW_SECONDS, _REQUEST_SECONDS = 0.5, 0.3  # the API server waits for a second, and then goes on without an answer
_KEPT_SECONDS = 30.0  # a controller makes many equal pods; the specs of claims and templates don't change
_MAX_KEPT, _MAX_CONTAINERS_MPS_CLAIMS, _MAX_CLAIMS, _MAX_READ, _MAX_NAMED = 256, 64, 64, 8, 4
_MPS_SELECTOR = re.compile(r"""sharingStrategy\s*==\s*["']MPS["']""")
_PATHS = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES}
_ClaimKey = tuple[str, str, str]  # kind, namespace, name
_Uses = list[tuple[str, str]]  # the entries of a pod's claims, each with a request of it, or "" for all of them


class ObjectApi(Protocol):
    """Reads single objects from the API server."""

    def request(self, method: str, path: str, *, timeout_s: float) -> Wire:
        """Return an object. Raises: ApiError."""


class MpsAdvisor:
    """Advises on the claims of pods. Any thread may ask."""

    def __init__(self, api: ObjectApi, fleet: PublishedFleet, drivers: Collection[str]) -> None:
        self._api, self._fleet, self._drivers = api, fleet, drivers
        self._kept: FifoCache[_ClaimKey, tuple[float, frozenset[str]]] = FifoCache(_MAX_KEPT)

    def warnings(self, wire: Any, namespace: str) -> list[str]:
        """Return a sentence for each container of a pod or pod template that can't use all of its claims."""
        spec = mapping(pod_of(wire).get("spec"))
        containers = dict(_containers(spec))
        if not containers or not self._fleet.is_known or not is_dns_label(namespace):
            return []
        wanted = dict.fromkeys(entry for uses in containers.values() for entry, _ in uses)
        sources = {name: key for name, key in _sources(spec, namespace) if name in wanted}
        until = time.monotonic() + _REVIEW_SECONDS
        under_mps = {name: self._requests_of(key, until) for name, key in islice(sources.items(), _MAX_READ)}
        found = ((container, list(_under_mps(uses, under_mps))) for container, uses in containers.items())
        return [_sentence(container, names) for container, names in found if len(names) > 1]

    def _requests_of(self, key: _ClaimKey, until: float) -> frozenset[str]:
        """Return the requests of a claim or template that are under MPS; none if it can't be read in time."""
        kept, now = self._kept.get(key), time.monotonic()
        if kept is not None and kept[0] > now:
            return kept[1]
        if until <= now:
            return frozenset()
        kind, namespace, name = key
        path = named(within(_PATHS[kind], namespace), name)
        try:
            wire = self._api.request("GET", path, timeout_s=min(_REQUEST_SECONDS, until - now))
        except ApiError:
            return frozenset()
        _, devices = device_part(kind, wire)
        found = frozenset(self._under_mps(devices))
        self._kept.keep(key, (now + _KEPT_SECONDS, found))
        return found

    def _under_mps(self, devices: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of a claim's requests whose devices are under MPS, by a config or by their class."""
        configured = [
            entry for entry in items(devices.get("config")) if self._is_mps_config(mapping(entry.get("opaque")))
        ]
        named_by_all = any(not entry.get("requests") for entry in configured)
        named_by = {str(name).partition("/")[0] for entry in configured for name in _listed(entry.get("requests"))}
        for request in items(devices.get("requests")):
            name = str(request.get("name"))
            expressions = list(self._expressions(request))
            is_ours = any(driver in text for driver in self._drivers for text in expressions)
            if is_ours and (named_by_all or name in named_by or any(map(_MPS_SELECTOR.search, expressions))):
                yield name

    def _is_mps_config(self, opaque: Mapping[str, Any]) -> bool:
        sharing = mapping(mapping(opaque.get("parameters")).get("sharing"))
        return opaque.get("driver") in self._drivers and sharing.get("strategy") == "MPS"

    def _expressions(self, request: Mapping[str, Any]) -> Iterator[str]:
        for part in (mapping(request.get("exactly")), *items(request.get("firstAvailable"))):
            for entry in items(part.get("selectors")):
                yield str(mapping(entry.get("cel")).get("expression"))
            yield from self._fleet.selectors_of(str(part.get("deviceClassName"))) or ()


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, _Uses]]:
    for field in ("initContainers", "containers"):
        for container in islice(items(spec.get(field)), _MAX_CONTAINERS_MPS_CLAIMS):
            entries = islice(items(mapping(container.get("resources")).get("claims")), _MAX_CLAIMS)
            uses = [(str(entry.get("name")), str(entry.get("request") or "")) for entry in entries]
            if len(uses) > 1:
                yield str(container.get("name")), uses


def _sources(spec: Mapping[str, Any], namespace: str) -> Iterator[tuple[str, _ClaimKey]]:
    """Yield the entries of a pod's claims, each with the claim or template that it names."""
    for entry in islice(items(spec.get("resourceClaims")), _MAX_CLAIMS):
        for kind, field in (
            ("ResourceClaim", "resourceClaimName"),
            ("ResourceClaimTemplate", "resourceClaimTemplateName"),
        ):
            name = entry.get(field)
            if isinstance(name, str) and is_dns_subdomain(name):
                yield str(entry.get("name")), (kind, namespace, name)


def _under_mps(uses: Iterable[tuple[str, str]], under_mps: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield each request under MPS that a container uses, once, as "entry/request"."""
    named = ((entry, request, name) for entry, request in uses for name in under_mps.get(entry, frozenset()))
    yield from sorted({f"{entry}/{name}" for entry, request, name in named if request in ("", name)})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _sentence(container: str, requests: list[str]) -> str:
    listed = ", ".join(requests[:_MAX_NAMED]) + (" …" if len(requests) > _MAX_NAMED else "")
    text = "are under MPS, and a container has one MPS daemon: only one works, unless they are shares of one GPU"
    return f"container {container}: {listed} {text}"
