"""The selectors to evaluate: from -e, classes, claims, templates, and the claims and classes that pods refer to.

In: expressions and documents. Out: `Query`s. Each has the selectors of one request in the scheduler's order, those of
the class before those of the request. Nothing is compiled here.

Source: Kubernetes API resource/v1 DeviceClassSpec, DeviceRequest (exactly, firstAvailable); v1beta1 requests hold the
fields of `exactly` themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.flags import VENDORS
from dra_driver.base.versions import FEATURE_GATES, NEWEST_MINOR
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.node.claims.config import validate
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.engine import CompileErrorKind, Environment, SelectorCompileError
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.simulator.claim_rules import CLAIM_RULES, TEMPLATE_RULES
from dra_driver.simulator.shapes import Faults, KindRules, RuleContext
from dra_driver.tools.webhook.review import KINDS, opaque_configs
from dra_driver.tools.world.documents import Classes, Document, Step, shown
from dra_driver.tools.world.fleet import Cluster, Fleet
from dra_driver.tools.world.positions import FilePositions, Position, position_in
from dra_driver.tools.world.shapes import with_place

CLASS, CLAIM, TEMPLATE, SLICE = "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"
# The path of the pod's spec in each kind of object that contains one.
_POD_SPECS: dict[str, tuple[str, ...]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
} | dict.fromkeys(
    ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"),
    ("spec", "template", "spec"),
)

_LONGEST_TITLE = 160  # characters
_OPERATORS = re.compile(r"""[=<>!&|?("']""")
_DEVICE = re.compile(r"\bdevice\s*[.\[?]")
_BARE = re.compile(r"true|false|device(\.\w+)+")

SELECTOR_KINDS = (CLASS, CLAIM, TEMPLATE, *_POD_SPECS)


@dataclass(frozen=True, slots=True)
class WrittenSelector:
    """One expression and its location. `document` and `path` lead to it; they are None for -e and the cluster."""

    label: str  # in the scheduler's words: "class NAME: selector #0"
    expression: str
    document: Document | None = None
    path: tuple[Step, ...] = ()
    in_class: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """The path of the expression in its file's document."""
        return (*(self.document.path if self.document else ()), *self.path)


@dataclass(frozen=True, slots=True)
class Query:
    """The selectors that one request applies to a device.

    Queries with the same `request` are alternatives (firstAvailable).
    """

    title: str
    request: str
    selectors: list[WrittenSelector]
    users: list[str] = field(default_factory=list)

    @property
    def is_class(self) -> bool:
        """Return whether these are the selectors of a class alone, without a request."""
        return all(written.in_class for written in self.selectors) and self.title.startswith("class ")


def queries_of(
    expressions: Sequence[str], documents: Sequence[Document], classes: Classes, cluster: Cluster | None
) -> list[Query]:
    """Return the queries in the documents. Raises: InputError for invalid objects; ApiError."""
    found: list[Query] = []
    if expressions:
        written = [
            WrittenSelector(f"-e #{n}" if len(expressions) > 1 else "-e", text) for n, text in enumerate(expressions)
        ]
        found.append(Query(_title(expressions), "-e", written))
    builder = _QueryBuilder(classes, cluster, documents)
    found.extend(builder.build())
    return found


def _title(expressions: Sequence[str]) -> str:
    """Return the expressions as the title of their query, on one line and not endless."""
    text = " && ".join(" ".join(expression.split()) for expression in expressions)
    return text if len(text) <= _LONGEST_TITLE else f"{text[: _LONGEST_TITLE - 1]}…"


def with_expressions(given: dict[str, Any], kubernetes: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options with those arguments among the values of -e that are expressions, and a note that says so."""
    expressions = tuple(text for text in given["files"] if _is_expression(text, kubernetes))
    if not expressions:
        return given, ()
    files = tuple(path for path in given["files"] if path not in expressions)
    note = "read as an expression, since no file has such a name (-e says so)"
    return {**given, "files": files, "expressions": (*given["expressions"], *expressions)}, (note,)


def _is_expression(argument: str, kubernetes: str) -> bool:
    """Return whether an argument is meant as an expression and not as a file: no file has that name, and it reads so.

    It reads so if it has an operator, a call or a literal, and parses or speaks of `device`; or if it is a field of
    `device`.
    """
    if os.path.lexists(argument) or argument.endswith((".yaml", ".yml", ".json")):
        return False
    if not _OPERATORS.search(argument):
        return _BARE.fullmatch(argument) is not None
    if _DEVICE.search(argument):
        return True
    try:
        KubernetesEngine(kubernetes).compile(argument)
    except SelectorCompileError as fault:
        return fault.kind is not CompileErrorKind.SYNTAX
    return True


@dataclass(frozen=True, slots=True)
class _Owner:
    """The claim or template that contains a request. `at` names it in errors."""

    document: Document | None
    namespace: str
    name: str
    at: str


class _QueryBuilder:
    def __init__(self, classes: Classes, cluster: Cluster | None, documents: Sequence[Document]) -> None:
        self._classes = classes
        self._cluster = cluster
        self._documents = documents
        self._holders: dict[tuple[str, str, str], list[Query]] = {}
        self._class_files = {document.name: document for document in documents if document.kind == CLASS}
        self._used: set[str] = set()

    def build(self) -> list[Query]:
        for document in self._documents:
            if document.kind in {CLAIM, TEMPLATE}:
                self._hold(document.kind, document.wire, document)
        extended: list[Query] = []
        for document in self._documents:
            if document.kind in _POD_SPECS:
                extended += self._pod(document)
        found = [query for queries in self._holders.values() for query in queries] + extended
        for name, document in self._class_files.items():
            if name not in self._used:
                found.append(Query(f"class {name}", f"class {name}", self._class_selectors(document.wire, name)))
        return found

    def _hold(self, kind: str, wire: Wire, document: Document | None) -> list[Query]:
        """Read the requests of a claim or template."""
        where = document.origin if document else "cluster"
        name = _text(_sub(wire, "metadata", where).get("name")) or document_name(document)
        namespace = _text(_sub(wire, "metadata", where).get("namespace"))
        at = f"{shown(where)}: {kind} {name}"
        owner = _Owner(document, namespace, name, at)
        path: tuple[Step, ...] = ("spec", "spec") if kind == TEMPLATE else ("spec",)
        spec = _walk(wire, path, at)
        devices = _sub(spec, "devices", at)
        queries: list[Query] = []
        for number, request in enumerate(_rows(devices, "requests", at)):
            title = f"{'template' if kind == TEMPLATE else 'claim'} {name}, request {_text(request.get('name'))}"
            for inner, sub, label in _alternatives(request, at):
                steps = (*path, "devices", "requests", number, *inner)
                query = Query(f"{title}{label}", f"{at}/{number}", [])
                self._fill(query, sub, steps, owner)
                queries.append(query)
        self._holders[kind, namespace, name] = queries
        return queries

    def _fill(self, query: Query, request: Wire, path: tuple[Step, ...], owner: _Owner) -> None:
        wanted = request.get("deviceClassName")
        if not isinstance(wanted, str) or not wanted:
            raise InputError("request", f"{owner.at}: a request has no deviceClassName")
        query.selectors.extend(self._class_selectors(self._classes.find(wanted, owner.at), wanted))
        self._used.add(wanted)
        for number, (text, steps) in enumerate(_expressions(request, owner.at)):
            label = f"claim {owner.namespace or 'default'}/{owner.name}: selector #{number}"
            query.selectors.append(WrittenSelector(label, text, owner.document, (*path, *steps)))

    def _class_selectors(self, wire: Wire, name: str) -> list[WrittenSelector]:
        at = f"DeviceClass {name}"
        spec = _sub(wire, "spec", at)
        return [
            WrittenSelector(
                f"class {name}: selector #{n}", text, self._class_files.get(name), ("spec", *steps), in_class=True
            )
            for n, (text, steps) in enumerate(_expressions(spec, at))
        ]

    def _pod(self, document: Document) -> list[Query]:
        """Add a pod to the users of the claims that it refers to, and return queries for its extended resources."""
        at = f"{shown(document.origin)}: {document.kind} {document.name}"
        spec = _walk(document.wire, _POD_SPECS[document.kind], at)
        user = f"{document.kind} {document.name}"
        namespace = _text(_sub(document.wire, "metadata", at).get("namespace"))
        for entry in _rows(spec, "resourceClaims", at):
            for key, kind in (("resourceClaimTemplateName", TEMPLATE), ("resourceClaimName", CLAIM)):
                name = entry.get(key)
                if isinstance(name, str) and name:
                    for query in self._named(kind, namespace, name, at):
                        query.users.append(user)
        return list(self._extended(spec, user, at))

    def _named(self, kind: str, namespace: str, name: str, at: str) -> list[Query]:
        for (held_kind, held_namespace, held_name), queries in self._holders.items():
            if (held_kind, held_name) == (kind, name) and (not namespace or held_namespace in {"", namespace}):
                return queries
        if self._cluster is not None:
            path = paths.TEMPLATES if kind == TEMPLATE else paths.CLAIMS
            wire = self._cluster.find(path, namespace or "default", name)
            if wire is not None:
                return self._hold(kind, wire, None)
        raise InputError(
            "no-claim", f"{at} names {kind} {name!r}, which is not in the files", hint=f"add the file with the {kind}"
        )

    def _extended(self, spec: Wire, user: str, at: str) -> Iterator[Query]:
        containers = [*_rows(spec, "containers", at), *_rows(spec, "initContainers", at)]
        names = {name for container in containers for name in _sub(_sub(container, "resources", at), "limits", at)}
        for resource in sorted(map(str, names)):
            wanted = self._classes.of_extended_resource(resource)
            if wanted is not None:
                selectors = self._class_selectors(self._classes.find(wanted, at), wanted)
                self._used.add(wanted)
                yield Query(f"{resource} (class {wanted})", f"{at}/{resource}", selectors, [user])


def document_name(document: Document | None) -> str:
    """Return the name of a document that may lack metadata."""
    return document.name if document else "?"


def _alternatives(request: Wire, at: str) -> Iterator[tuple[tuple[Step, ...], Wire, str]]:
    """Yield the parts of a request that name a class, each with its path and a suffix for the title."""
    if "exactly" in request:
        yield ("exactly",), _sub(request, "exactly", at), ""
    elif "firstAvailable" in request:
        for number, sub in enumerate(_rows(request, "firstAvailable", at)):
            yield ("firstAvailable", number), sub, f"/{_text(sub.get('name'))}"
    else:
        yield (), request, ""


def _expressions(holder: Wire, at: str) -> Iterator[tuple[str, tuple[Step, ...]]]:
    for number, selector in enumerate(_rows(holder, "selectors", at)):
        text = _sub(selector, "cel", at).get("expression")
        if not isinstance(text, str):
            raise InputError("selector", f"{at}: selectors[{number}].cel.expression is not a text")
        yield text, ("selectors", number, "cel", "expression")


def _walk(wire: Wire, path: Sequence[Step], at: str) -> Wire:
    for step in path:
        wire = _sub(wire, str(step), at)
    return wire


def _sub(wire: Wire, name: str, at: str) -> Wire:
    value = wire.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError("object", f"{at}: {name} is not a mapping")
    return value


def _rows(wire: Wire, name: str, at: str) -> list[dict[str, Any]]:
    value = wire.get(name) or []
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise InputError("object", f"{at}: {name} is not a list of mappings")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# Admission: claims and templates that an API server would refuse, found before they are created.

_RULES: dict[str, KindRules] = {"ResourceClaim": CLAIM_RULES, "ResourceClaimTemplate": TEMPLATE_RULES}
_LABELS = {"resource.kubernetes.io/admin-access": "true"}
_DRIVERS = frozenset(vendor.driver for vendor in VENDORS)
_CONFIG_HINT = "docs/device-configs.md says what a config may have"
_ANYWHERE = RuleContext(NEWEST_MINOR, frozenset(FEATURE_GATES), "", lambda _: _LABELS)


def refuse_inadmissible(document: Document, wire: Wire) -> None:
    """Refuse an object that no API server would store, or with a config that no node would accept.

    Raises: InputError("input.object", "input.bad-config").
    """
    refuse_bad_configs(document, wire)
    rules = _RULES.get(document.kind)
    if rules is None or wire["metadata"].get("uid"):  # an object with a UID came from an API server
        return
    new, faults = deepcopy(wire), Faults()
    new.setdefault("spec", {})
    rules.prepare(new, None, _ANYWHERE)
    rules.check(new, None, _ANYWHERE, faults)
    for cause in faults.causes:
        if ".selectors[" not in cause.field:
            text = f"{shown(document.origin)}: {document.kind} {document.name}: {cause.field}: {cause.message}"
            hint = "the API server refuses such an object" if len(faults.causes) == 1 else ""
            raise with_place(document, InputError("object", text, hint=hint or _more(len(faults.causes) - 1)))


def refuse_bad_configs(document: Document, wire: Wire) -> None:
    """Refuse a claim, template or class with a config that the nodes of its driver would refuse.

    Raises: InputError("input.bad-config").
    """
    if document.kind not in KINDS or wire["metadata"].get("uid"):
        return
    faults = [
        fault
        for config in opaque_configs(document.kind, wire)
        if config.driver in _DRIVERS
        for fault in validate(config.parameters, config.path, config.driver)
    ]
    if faults:
        more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
        text = f"{shown(document.origin)}: {document.kind} {document.name}: {faults[0]}{more}"
        raise with_place(document, InputError("bad-config", text, hint=_CONFIG_HINT))


def _more(others: int) -> str:
    return f"the API server refuses such an object, and names {others} more {'fault' if others == 1 else 'faults'}"


# The inputs of an evaluation of selectors: devices, selectors, a version of Kubernetes and its gates.


@dataclass(frozen=True, slots=True)
class SelectorInputs:
    """The inputs of a question about selectors. `classes` are those that requests may name; `positions` finds lines."""

    fleet: Fleet
    queries: list[Query]
    kubernetes: str
    gates: dict[str, bool]
    environment: Environment
    classes: Classes = field(default_factory=lambda: Classes([], []))
    positions: FilePositions = field(default_factory=FilePositions)

    def position(self, written: WrittenSelector, offset: int = 0) -> Position | None:
        """Return where a character of an expression is: in its file, or in an expression that no file has.

        Return None if it is in the cluster, or its file can't be read again.
        """
        if written.document is not None:
            return self.positions.of_character(written.document, written.path, written.expression, offset)
        return (
            None if written.in_class or not written.label.startswith("-e") else position_in(written.expression, offset)
        )

    @property
    def verdicts(self) -> str:
        """Return "exact" if recorded verdicts of this version exist, else "derived"."""
        return declare(self.kubernetes, self.gates, self.environment).verdicts

    def engine(self) -> KubernetesEngine:
        """Make the engine for this version and these gates."""
        return KubernetesEngine(self.kubernetes, gates=self.gates)
