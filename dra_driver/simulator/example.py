"""Examples: files of Kubernetes objects whose comments state what is expected to happen.

In: a YAML file. Out: its intent (the comment at its head), its objects, and what it expects. Strict: a line that begins
with `# expect:` must be one of the `sentences`, and may refer only to objects in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeGuard

from dra_driver.allocation.constraints import look_up
from dra_driver.base.errors import InputError
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.node.claims.metadata import DescribedDevice
from dra_driver.simulator import value_rules, workloads
from dra_driver.simulator.container_view import ContainerView
from dra_driver.simulator.scheduler import Choice
from dra_driver.simulator.sentences import (
    ClaimAgrees,
    ClaimHolds,
    ClaimRefused,
    ClaimStatusHas,
    ClaimTakes,
    ContainerHasEnv,
    ContainerHasNodes,
    ContainerReads,
    ContainersSee,
    Expectation,
    NodeHasLabel,
    PodPends,
    PodRuns,
    meaning_of,
    mentioned,
)
from dra_driver.simulator.shapes import ApiRefusal
from dra_driver.simulator.store import CLAIMS, PODS, kind_of

MAX_SIZE = 1 << 20  # bytes of one file
_MARK = re.compile(r"#\s*expect\s*:(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One expectation, with its text and its line."""

    text: str
    line: int
    meaning: Expectation


@dataclass(frozen=True, slots=True)
class Example:
    """One example file, as it was read."""

    path: Path
    intent: str
    objects: tuple[Wire, ...]
    expects: tuple[Sentence, ...]
    quotas: tuple[Wire, ...] = ()

    @property
    def pods(self) -> list[Wire]:
        """The pods, in the order of the file."""
        return [wire for wire in self.objects if wire["kind"] == PODS.kind]


def load_examples(folder: Path) -> list[Example]:
    """Read every YAML file of a folder, in the order of names.

    Raises: InputError if there are no files, or if one is wrong.
    """
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if not paths:
        raise InputError("no-examples", f"no YAML file in {folder}")
    return [load_example(path) for path in paths]


def load_example(path: Path) -> Example:
    """Read one file. Raises: InputError with the file and the line."""
    text = text_of(path)
    found = list(load_objects(path, text))
    quota_objects = tuple(wire for wire in found if wire["kind"] == value_rules.KIND)
    try:
        objects = tuple(workloads.expand(wire for wire in found if wire not in quota_objects))
        known = _names(objects)
        for wire in objects:
            if wire["kind"] == CLAIMS.kind:
                value_rules.devices_by_class(wire)  # fails here, not later when the API server counts for a quota
    except (AttributeError, LookupError, TypeError, ValueError) as fault:
        raise _fault(path, 1, f"an object does not have the shape of its kind: {fault}") from fault
    expects = tuple(_sentences(path, text))
    if not expects:
        raise _fault(path, 1, "no line begins with '# expect:'")
    for sentence in expects:
        for kind, name in mentioned(sentence.meaning):
            if name not in known[kind]:
                raise _fault(path, sentence.line, f"there is no {kind} {name} in this file")
    return Example(path, _intent(text), objects, expects, quota_objects)


def text_of(path: Path) -> str:
    """Return the text of one file. Raises: InputError("input.unreadable", "input.too-large")."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SIZE + 1)
        if len(content) > MAX_SIZE:
            raise InputError("too-large", f"{path} is larger than {MAX_SIZE >> 20} MiB")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError("unreadable", f"{path}: {fault}") from fault


def load_objects(path: Path, text: str) -> Iterator[Wire]:
    """Yield the Kubernetes objects of a file. Raises: InputError."""
    import yaml  # noqa: PLC0415  (loaded when there is a file to read)

    from dra_driver.base.text.yaml_values import TooDeepError, load_yaml  # noqa: PLC0415  (likewise)

    try:
        documents = list(load_yaml(text))
    except TooDeepError as fault:
        raise _fault(path, 1, "the objects are nested too deeply") from fault
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        raise _fault(path, mark.line + 1 if mark else 1, str(getattr(fault, "problem", fault))) from fault
    for number, document in enumerate(documents, 1):
        if not _is_named(document):
            raise _fault(path, 1, f"document {number} is not a Kubernetes object with a name")
        if workloads.is_workload(document) or document.get("kind") == value_rules.KIND:
            yield document
            continue
        try:
            kind_of(document)
        except ApiRefusal:
            what = f"{document.get('apiVersion')} {document.get('kind')}"
            raise _fault(path, 1, f"document {number}: {what} is not served here") from None
        yield document


def _is_named(document: object) -> TypeGuard[Wire]:
    if not isinstance(document, dict) or not all(isinstance(document.get(key), str) for key in ("apiVersion", "kind")):
        return False
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and bool(metadata["name"])


def _sentences(path: Path, text: str) -> Iterator[Sentence]:
    for number, line in enumerate(text.splitlines(), 1):
        if mark := _MARK.match(line.strip()):
            written = mark["text"].strip()
            try:
                meaning = meaning_of(written)
            except ValueError as fault:
                raise _fault(path, number, str(fault)) from fault
            if meaning is None:
                raise _fault(path, number, f"{written!r} is not a known expectation", "see dra-driver demo --help")
            yield Sentence(written, number, meaning)


def _intent(text: str) -> str:
    """Return the comment at the head of the file, up to the first empty comment line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def _names(objects: tuple[Wire, ...]) -> dict[str, set[str]]:
    pods = [wire for wire in objects if wire["kind"] == PODS.kind]
    claims = {wire["metadata"]["name"] for wire in objects if wire["kind"] == CLAIMS.kind}
    for pod in pods:
        for entry in _spec(pod).get("resourceClaims") or []:
            if "resourceClaimTemplateName" in entry:
                claims.add(f"{pod['metadata']['name']}/{entry['name']}")
    containers = {f"{p['metadata']['name']}/{c['name']}" for p in pods for c in _spec(p).get("containers") or []}
    return {"pod": {pod["metadata"]["name"] for pod in pods}, "claim": claims, "container": containers}


def _spec(pod: Wire) -> dict[str, Any]:
    return pod.get("spec") or {}


def _fault(path: Path, line: int, why: str, hint: str = "") -> InputError:
    return InputError("example", f"{path}:{line}: {why}", hint=hint)


# Report: what became of one example, its claims, its pods and their devices.


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """One device of a claim: the allocator's choice, and the device as it is published."""

    choice: Choice
    device: DeviceWire


@dataclass(slots=True)
class ClaimReport:
    """What happened to one claim. `label` is its name in expectations."""

    label: str
    name: str
    namespace: str
    uid: str
    held: tuple[ChosenDevice, ...] = ()
    refusal: str = ""
    device_status: Mapping[str, str] = field(default_factory=dict)  # what status.devices reports


@dataclass(slots=True)
class PodReport:
    """What happened to one pod. `failure` is why its containers did not start; "" if they could."""

    name: str
    is_placed: bool = False
    failure: str = ""
    containers: dict[str, ContainerView] = field(default_factory=dict)
    # the devices that are described in the files of each container
    described: dict[str, tuple[DescribedDevice, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class ExampleReport:
    """What happened to one example."""

    example: Example
    claims: list[ClaimReport] = field(default_factory=list)
    pods: list[PodReport] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)  # of the node
    refused: dict[str, str] = field(default_factory=dict)  # the claims that were refused, with the reasons
    unmet: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether every expectation was met and nothing was left behind."""
        return not self.unmet and not self.left

    @property
    def files(self) -> list[Path]:
        """The CDI files that contain the devices of the containers."""
        views = [view for pod in self.pods for view in pod.containers.values()]
        return list(dict.fromkeys(path for view in views for path in view.files))


# Expectations: compare what an example expects with what happened.


def mismatch(expectation: Expectation, report: ExampleReport) -> str:
    """Return what was observed instead of what was expected; "" if the expectation was met."""
    match expectation:
        case PodRuns(pod):
            return _runs(report, pod)
        case PodPends(pod, text):
            return _pends(report, pod, text)
        case ClaimRefused(claim, text):
            return _refused(report, claim, text)
        case ClaimHolds():
            return _holds(expectation, _claim(report, expectation.claim))
        case ClaimTakes(claim, amount, capacity):
            return _takes(_held(report, claim), amount, capacity)
        case ClaimAgrees(claim, name):
            return _agree(_held(report, claim), name)
        case ClaimStatusHas(claim, name, pattern):
            of_claim = _claim(report, claim)
            return _has_status(of_claim.device_status if of_claim else {}, name, pattern)
        case ContainerHasNodes(container, count, pattern):
            return _has_nodes(_paths(_view(report, container)), count, pattern)
        case ContainerHasEnv(container, name, pattern):
            return _has_env(_view(report, container).env, name, pattern)
        case ContainerReads(container, request, name, pattern):
            return _reads(_attributes_read(report, container, request), name, pattern)
        case NodeHasLabel(name, pattern):
            return _has_label(report.labels, name, pattern)
        case ContainersSee(first, second, is_same):
            return _see(*(set(_paths(_view(report, name))) for name in (first, second)), is_same=is_same)


def _pod(report: ExampleReport, name: str) -> PodReport | None:
    return next((pod for pod in report.pods if pod.name == name), None)


def _runs(report: ExampleReport, name: str) -> str:
    pod = _pod(report, name)
    failure = pod.failure if pod else "it was never started"
    return f"it does not run: {failure}" if failure else ""


def _pends(report: ExampleReport, name: str, text: str) -> str:
    pod = _pod(report, name)
    if pod is None or pod.is_placed:
        return "it was placed" if pod else "it was never started"
    return "" if text in pod.failure else f"it is pending, but because of: {pod.failure}"


def _refused(report: ExampleReport, claim: str, text: str) -> str:
    reason = report.refused.get(claim)
    if reason is None:
        return "the API server did not refuse the claim"
    return "" if text in reason else f"the API server refused the claim with: {reason}"


def _claim(report: ExampleReport, label: str) -> ClaimReport | None:
    return next((claim for claim in report.claims if claim.label == label), None)


def _held(report: ExampleReport, label: str) -> tuple[ChosenDevice, ...]:
    claim = _claim(report, label)
    return claim.held if claim else ()


def _view(report: ExampleReport, name: str) -> ContainerView:
    pod_name, _, container = name.partition("/")
    pod = _pod(report, pod_name)
    return pod.containers.get(container, ContainerView()) if pod else ContainerView()


def _attributes_read(report: ExampleReport, name: str, request: str) -> list[tuple[str, str]]:
    """Return the attributes of a request's devices that a container can read."""
    pod_name, _, container = name.partition("/")
    pod = _pod(report, pod_name)
    described = pod.described.get(container, ()) if pod else ()
    return [pair for device in described if device.request == request for pair in device.attributes]


def _paths(view: ContainerView) -> list[str]:
    return [node.path for node in view.device_nodes]


def _holds(expectation: ClaimHolds, claim: ClaimReport | None) -> str:
    if claim is None or claim.refusal:
        return f"it holds nothing: {claim.refusal if claim else 'it was never created'}"
    if len(claim.held) != expectation.count:
        return f"it holds {len(claim.held)}"
    for held in claim.held:
        for name, operator, value in expectation.tests:
            if not _passes(held.device, name, operator, value):
                return f"{held.choice.id[2]} does not have {name}{operator}{value}"
    return ""


def _takes(held: Sequence[ChosenDevice], amount: str, capacity: str) -> str:
    taken = [one.choice.consumed.get(capacity) for one in held]
    is_met = bool(taken) and all(one and Quantity.parse(one) == Quantity.parse(amount) for one in taken)
    return "" if is_met else f"it takes {taken}"


def _agree(held: Sequence[ChosenDevice], name: str) -> str:
    values = [look_up(one.device, one.choice.id[0], name) for one in held]
    is_met = bool(values) and None not in values and all(value == values[0] for value in values)
    return "" if is_met else f"its devices have {values}"


def _has_status(status: Mapping[str, str], name: str, pattern: str) -> str:
    return "" if name in status and fnmatchcase(status[name], pattern) else f"its status has {dict(status)}"


def _has_nodes(paths: Sequence[str], count: int, pattern: str) -> str:
    found = [path for path in paths if fnmatchcase(path, pattern)]
    return "" if len(found) == count else f"it has {len(found)} of them; it sees {', '.join(paths) or 'none'}"


def _has_env(variables: Iterable[str], name: str, pattern: str) -> str:
    env = dict(item.split("=", 1) for item in variables)
    return "" if name in env and fnmatchcase(env[name], pattern) else f"its environment is {env}"


def _reads(attributes: Sequence[tuple[str, str]], name: str, pattern: str) -> str:
    is_met = any(fnmatchcase(value, pattern) for key, value in attributes if key == name)
    return "" if is_met else f"it reads {dict(attributes) or 'nothing'}"


def _has_label(labels: Mapping[str, str], name: str, pattern: str) -> str:
    value = labels.get(name)
    return "" if value is not None and fnmatchcase(value, pattern) else f"its labels are {labels}"


def _see(one: set[str], other: set[str], *, is_same: bool) -> str:
    """Compare the device nodes that two containers see."""
    return "" if (one == other) is is_same and one and other else f"they see {sorted(one)} and {sorted(other)}"


def _passes(device: DeviceWire, name: str, operator: str, value: str) -> bool:
    if operator == ">=":
        amount = (device.get("capacity") or {}).get(name)
        try:
            return amount is not None and Quantity.parse(amount["value"]) >= Quantity.parse(value)
        except QuantityError:
            return False
    found = (device.get("attributes") or {}).get(name)
    if found is None:
        return False
    (shown,) = found.values()
    return (str(shown).lower() if isinstance(shown, bool) else str(shown)) == value
