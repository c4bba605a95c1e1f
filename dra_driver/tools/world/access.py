"""Access to a live cluster with the rights of the person who runs a command: which cluster, and what may be read.

In: a kubeconfig, a context, a namespace. Out: connections, lists of objects, and what could not be read and why. If a
list of all namespaces is refused, the list of the one namespace is read instead; what is still refused is
`UnseenObjects`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from typing import Any, Protocol, TypeVar

from dra_driver.allocation.usage import unsuitable_reason
from dra_driver.base.errors import ApiError, NodeError
from dra_driver.base.text.json_text import SharedValues
from dra_driver.base.versions import CONSUMABLE_CAPACITY, DEVICE_TAINTS, EXTENDED_RESOURCE, PARTITIONABLE_DEVICES, Since
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.kube.answers import FORBIDDEN
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.kubeconfig import read_namespace
from dra_driver.kube.paths import CLASSES, SLICES
from dra_driver.kube.watch import pages
from dra_driver.simulator.workloads import PodTemplate

# The progress of a long task, for the person who waits for it.

_T = TypeVar("_T")


class ProgressLine(Protocol):
    """The progress of one long task, shown to a person."""

    def update(self, done: int) -> None:
        """Show how many items are done. It is called for every item, so an implementation must be fast."""

    def close(self) -> None:
        """End the task."""


class NoProgress:
    """The progress of a task that is not shown."""

    def __init__(self, noun: str, total: int = 0) -> None:
        """Begin a task of `total` items (0: not known), which are called `noun` in the plural."""

    def update(self, done: int) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


ProgressLines = Callable[[str, int], ProgressLine]  # begins a task: a plural noun for its items; their number, or 0


def counted(things: Collection[_T], noun: str, lines: ProgressLines) -> Iterator[_T]:
    """Yield the items, and show how many are done."""
    line = lines(noun, len(things))
    try:
        for done, one in enumerate(things):
            line.update(done)
            yield one
    finally:
        line.close()


# Lists of a live cluster, read page by page, with their progress shown.


def read_list(api: KubeApi, path: str, noun: str, lines: ProgressLines) -> list[Wire]:
    """Return all objects of a collection; `noun` is what the line of progress calls them. Raises: ApiError."""
    found: list[Wire] = []
    line, values = lines(noun, 0), SharedValues()
    try:
        for page in pages(api, path):
            if page.is_first:
                found = []  # the list has started over
            for wire in page.objects:
                values.share(wire)
            found += page.objects
            line.update(len(found))
        return found
    finally:
        line.close()


VIEWER = "dra-driver-viewer"  # the chart's ClusterRole for people; it lets them read slices, classes and nodes
OWN_VIEW = "view"  # Kubernetes' own role, to which the chart adds claims
_RIGHT = "the right to list them is missing"
_WHOLE_CLUSTER = frozenset({paths.NODES, paths.SLICES, paths.CLASSES})  # kinds that have no namespace


@dataclass(frozen=True, slots=True)
class UnseenObjects:
    """Objects of one kind that could not be read. `scope` is a namespace, or "" for the whole cluster.

    If `is_partial`, the objects in the person's own namespace were read, and all others were not.
    """

    kind: str
    scope: str
    is_partial: bool = False

    @property
    def where(self) -> str:
        """Return where the objects could not be read, and which role would permit it."""
        if self.is_partial:
            return f" of other namespaces than {self.scope} ({_RIGHT}: bind ClusterRole {OWN_VIEW} for all of them)"
        if self.scope:
            return f" of namespace {self.scope} ({_RIGHT}: bind ClusterRole {OWN_VIEW} there)"
        return f" ({_RIGHT}: bind ClusterRole {VIEWER})"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """A cluster and the part of it to be read. If `namespace` is "", that of the kubeconfig's context is used.

    `simulates` says that the command shows simulated nodes as well, which is told to a person who has no cluster.
    """

    kubeconfig: str | None
    context: str = ""
    namespace: str = ""
    simulates: bool = False
    unseen: list[UnseenObjects] = field(default_factory=list)

    @property
    def home(self) -> str:
        """The namespace that is used if the user names none. Raises: InputError."""
        if self.namespace or not self.kubeconfig:
            return self.namespace or "default"
        return read_namespace(self.kubeconfig, self.context)

    def connect(self) -> KubeApi:
        """Connect to the cluster. Raises: InputError, NodeError."""
        try:
            return KubeApi(load_credentials(self.kubeconfig, context=self.context))
        except NodeError as error:
            if self.simulates:
                error.hint += "; without a cluster try a simulated node: --fleet dgx-h100"
            raise

    def read(
        self, api: KubeApi, kind: str, path: str, lines: ProgressLines = NoProgress, *, at_home: bool = False
    ) -> list[Wire]:
        """Return all objects of a kind that may be read; `at_home` asks only for those of the namespace.

        What is refused is added to `unseen`. Raises: ApiError for any other failure.
        """
        has_namespaces = path not in _WHOLE_CLUSTER
        if not (has_namespaces and at_home):
            found = self._list(api, kind, path, lines)
            if found is not None or not has_namespaces:
                if found is None:
                    self.unseen.append(UnseenObjects(kind, ""))
                return found or []
        found = self._list(api, kind, paths.within(path, self.home), lines)
        if found is None or not at_home:
            self.unseen.append(UnseenObjects(kind, self.home, is_partial=found is not None))
        return found or []

    @staticmethod
    def _list(api: KubeApi, kind: str, path: str, lines: ProgressLines) -> list[Wire] | None:

        try:
            return read_list(api, path, f"{kinds_word(kind)} read", lines)
        except ApiError as error:
            if error.code == FORBIDDEN:
                return None
            raise


def unseen_sentences(unseen: Sequence[UnseenObjects]) -> list[str]:
    """Return what could not be seen, in one sentence for all kinds that the same role would permit to read."""
    found: dict[str, list[str]] = {}
    for one in unseen:
        found.setdefault(one.where, []).append(kinds_word(one.kind))
    return [f"could not be seen: {_listed(kinds)}{where}" for where, kinds in found.items()]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def kinds_word(kind: str) -> str:
    """Return a kind in the plural.

    >>> kinds_word("DeviceClass"), kinds_word("Pod")
    ('DeviceClasses', 'Pods')
    """
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


def unseen_document(unseen: Sequence[UnseenObjects]) -> list[Wire]:
    """Return the document of what could not be read."""
    return [{"kind": one.kind, "namespace": one.scope or None, "partial": one.is_partial} for one in unseen]


# The envelope of `--output json` and `--output yaml`: every document that a command writes passes through here.

API_VERSION = "cli.dra-driver/v1"
_BEHIND_UNDERSCORE = re.compile(r"_(\w)")


class DocumentKind(StrEnum):
    """The kinds of documents."""

    NODE_OFFER = "NodeOffer"
    NODE_HEALTH = "NodeHealth"
    NODE_REMEDIATION = "NodeRemediation"
    CORDON = "Cordon"
    DEMO_RUN = "DemoRun"
    VALIDATION = "Validation"
    CONFIG_CHECK = "ConfigCheck"
    DOCTOR_REPORT = "DoctorReport"
    SLICE_TREE = "SliceTree"
    CLAIM_TREE = "ClaimTree"
    FLEET_SUMMARY = "FleetSummary"  # this kind and those of pages are written by the console only
    FLEET_PAGE = "FleetPage"
    DEVICE_PAGE = "DevicePage"
    CLAIMS_PAGE = "ClaimsPage"
    CLAIM_PAGE = "ClaimPage"
    HISTORY = "History"
    WHAT_IF = "WhatIf"
    ATTENTION = "Attention"
    DASHBOARD = "Dashboard"
    READINGS = "Readings"
    SELECTOR_PLAY = "SelectorPlay"
    CLAIMS_IN_USE = "ClaimsInUse"
    EXPLANATION = "Explanation"
    EXPLANATIONS = "Explanations"
    SIMULATION = "Simulation"
    MIGRATION = "Migration"
    USAGE_REPORT = "UsageReport"
    SELECTOR_MATCHES = "SelectorMatches"
    SELECTOR_EXPLANATIONS = "SelectorExplanations"
    SELECTOR_FINDINGS = "SelectorFindings"
    SELECTOR_TESTS = "SelectorTests"
    SELECTOR_VERDICT = "SelectorVerdict"  # the answer to one line of a batch
    ALLOCATION_VERDICT = "AllocationVerdict"  # likewise
    BATCH_FAULT = "BatchFault"  # the answer to a line of a batch that can't be read


@dataclass(frozen=True, slots=True)
class OutputDocument:
    """One document for programs. `content` consists of JSON's types: mappings, lists, text, numbers, booleans."""

    kind: DocumentKind
    content: Mapping[str, Any]

    def wire(self) -> Wire:
        """Return the whole document, as it is written."""
        return {"apiVersion": API_VERSION, "kind": str(self.kind), **self.content}


def batch_fault(name: Any, line: int, error: str) -> OutputDocument:
    """Return the answer to a line of a batch that can't be read; `name` is the line's id, None if it has none."""
    return OutputDocument(DocumentKind.BATCH_FAULT, {"id": name, "line": line, "error": error})


def plain(value: Any) -> Any:
    """Return a value made of dataclasses in JSON's types: fields become camelCase, keys of mappings stay as they are.

    >>> plain({"some_key": ("a", "b")})
    {'some_key': ['a', 'b']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {camel(one.name): plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return value


def camel(name: str) -> str:
    """Return a Python name as a JSON name.

    >>> camel("others_possible")
    'othersPossible'
    """
    return _BEHIND_UNDERSCORE.sub(lambda found: found[1].upper(), name)


# Feature gates, recognised by the fields that the API server keeps of an object that is never stored.


@dataclass(frozen=True, slots=True)
class GateProbe:
    """The question about one gate: how to make the object, where its field is, and what is missing without the gate."""

    make: Callable[[str, str, int], tuple[str, Wire]]
    field: tuple[str | int, ...]
    without: str

    def request(self, driver: str, node: str, minor: int) -> tuple[str, Wire]:
        """Return path and body of the dry run."""
        return self.make(driver, node, minor)


def has_field(probe: GateProbe, stored: Wire) -> bool:
    """Return whether the object in the server's answer has the field."""
    value: Any = stored
    for key in probe.field:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return value not in (None, False, [], {})


def _slice(driver: str, node: str, **spec: Any) -> tuple[str, Wire]:
    pool = {"name": f"{node}/doctor", "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "dra-driver-doctor-"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, **spec},
    }
    return SLICES, body


def _counters(driver: str, node: str, minor: int) -> tuple[str, Wire]:
    sets = [{"name": "gpu", "counters": {"memory": {"value": "1"}}}]
    if minor >= Since.COUNTERS_APART:
        return _slice(driver, node, sharedCounters=sets)
    takes = [{"counterSet": "gpu", "counters": {"memory": {"value": "1"}}}]
    return _slice(driver, node, sharedCounters=sets, devices=[{"name": "a", "consumesCounters": takes}])


def _taints(driver: str, node: str, _minor: int) -> tuple[str, Wire]:
    taint = {"key": "doctor.example.com/asked", "effect": "NoSchedule"}
    return _slice(driver, node, devices=[{"name": "a", "taints": [taint]}])


def _shared(driver: str, node: str, _minor: int) -> tuple[str, Wire]:
    return _slice(driver, node, devices=[{"name": "a", "allowMultipleAllocations": True}])


def _extended(_driver: str, _node: str, _minor: int) -> tuple[str, Wire]:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"generateName": "dra-driver-doctor-"},
        "spec": {"extendedResourceName": "doctor.example.com/asked"},
    }
    return CLASSES, body


PROBES: dict[str, GateProbe] = {
    PARTITIONABLE_DEVICES: GateProbe(
        _counters, ("spec", "sharedCounters"), "MIG partitions on demand: GPUs are offered as they are partitioned"
    ),
    CONSUMABLE_CAPACITY: GateProbe(
        _shared, ("spec", "devices", 0, "allowMultipleAllocations"), "shares by size; replicas still work"
    ),
    DEVICE_TAINTS: GateProbe(_taints, ("spec", "devices", 0, "taints"), "taints on unhealthy devices"),
    EXTENDED_RESOURCE: GateProbe(
        _extended, ("spec", "extendedResourceName"), "pods with limits nvidia.com/gpu served by classes"
    ),
}


# The pods that are made from a workload's template, as its controller would make them.

# Taints that the DaemonSet controller makes pods tolerate. Source: kubernetes.io, DaemonSet, taints and tolerations.
_TOLERATED_BY_DAEMONS = [
    {"key": key, "operator": "Exists", "effect": effect}
    for key, effect in (
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    )
]


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod template of an object, and the pods that were made from it."""

    template: PodTemplate
    pods: tuple[Wire, ...]

    @property
    def idle(self) -> str:
        """A sentence on why there are no pods; "" if there are some."""
        of = f", {self.template.role}" if self.template.role else ""
        name = f"{self.template.kind} {self.template.name}{of}"
        if self.pods:
            return ""
        if self.template.is_suspended:
            return f"{name} is suspended: it makes no pods until it is resumed"
        why = "no node that its pods may go to" if self.template.is_per_node else "its counts ask for 0"
        return f"{name} makes no pods: {why}"


def pods_of(template: PodTemplate, nodes: Sequence[Wire]) -> Iterator[Wire]:
    """Yield the pods of a template; for a DaemonSet, one for each node that it may run on."""
    if not template.is_per_node:
        yield from template.pods()
        return
    spec = template.pod["spec"]
    tolerations = [*(spec.get("tolerations") or ()), *_TOLERATED_BY_DAEMONS]
    owners = [{"kind": "DaemonSet", "name": template.name, "controller": True}]
    metadata = {**template.pod["metadata"], "ownerReferences": owners}
    daemon = replace(template, pod={**template.pod, "metadata": metadata, "spec": {**spec, "tolerations": tolerations}})
    for node in nodes:
        if unsuitable_reason(daemon.pod, node):
            continue
        name = node["metadata"]["name"]
        pod = daemon.named(f"{template.name}-{name}")
        yield {**pod, "spec": {**pod["spec"], "affinity": _on_node(name)}}


def _on_node(name: str) -> Wire:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
