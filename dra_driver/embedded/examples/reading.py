"""Examples: files of Kubernetes objects whose comments state what is expected to happen.

In: a YAML file. Out: its intent (the comment at its head), its objects, and what it expects. Strict: a line that begins
with `# expect:` must be one of the sentences below, and may refer only to objects in the file.

    pod NAME runs
    pod NAME stays pending[: TEXT IN THE REASON]
    claim CLAIM is refused[: TEXT IN THE REASON]
    claim CLAIM holds COUNT [where ATTRIBUTE=VALUE CAPACITY>=QUANTITY …]
    claim CLAIM takes QUANTITY of CAPACITY
    claim CLAIM agrees on DOMAIN/ATTRIBUTE
    container POD/CONTAINER has COUNT node[s] PATTERN
    container POD/CONTAINER has env NAME=PATTERN
    containers POD/CONTAINER POD/CONTAINER see the same|different nodes

CLAIM is the name of a ResourceClaim, or POD/ENTRY for a claim that is made from a template. The pods of a Deployment or
Job are NAME-0 and so on (`workloads`). Patterns are those of a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.embedded.api.kinds import CLAIMS, PODS, kind_of
from dra_driver.embedded.api_rules import quotas as quotas_room
from dra_driver.embedded.api_rules.refusals import ApiRefusal
from dra_driver.embedded.scheduling import workloads
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

_MARK = re.compile(r"#\s*expect\s*:(?P<text>.*)")
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class PodRuns:
    """The pod gets all its claims, and its containers could start."""

    pod: str


@dataclass(frozen=True, slots=True)
class PodPends:
    """The pod is not placed; the reason contains `text`."""

    pod: str
    text: str


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """The API server refuses the claim; its reason contains `text`."""

    claim: str
    text: str


@dataclass(frozen=True, slots=True)
class ClaimHolds:
    """The claim holds `count` devices, each of which passes `tests`: (name, "=" or ">=", value)."""

    claim: str
    count: int
    tests: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ClaimTakes:
    """Every device of the claim is shared, and the claim takes this amount of a capacity of each."""

    claim: str
    amount: str
    capacity: str


@dataclass(frozen=True, slots=True)
class ClaimAgrees:
    """All devices of the claim have the same value of an attribute."""

    claim: str
    attribute: str


@dataclass(frozen=True, slots=True)
class ContainerHasNodes:
    """The container sees `count` device nodes that match a pattern."""

    container: str
    count: int
    pattern: str


@dataclass(frozen=True, slots=True)
class ContainerHasEnv:
    """The container has a variable whose value matches a pattern."""

    container: str
    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class ContainersSee:
    """Two containers see the same device nodes, or different ones."""

    first: str
    second: str
    is_same: bool


Expectation = (
    PodRuns
    | PodPends
    | ClaimRefused
    | ClaimHolds
    | ClaimTakes
    | ClaimAgrees
    | ContainerHasNodes
    | ContainerHasEnv
    | ContainersSee
)


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


_TEST = re.compile(r"(?P<name>[A-Za-z0-9_./-]+)(?P<op>>=|=)(?P<value>\S+)")


def _tests(text: str | None) -> tuple[tuple[str, str, str], ...]:
    found = []
    for word in (text or "").split():
        match = _TEST.fullmatch(word)
        if not match:
            raise ValueError(f"{word!r} is neither ATTRIBUTE=VALUE nor CAPACITY>=QUANTITY")
        found.append((match["name"], match["op"], match["value"]))
    return tuple(found)


_CLAIM = rf"(?P<claim>{_NAME}(/{_NAME})?)"
_SENTENCES: tuple[tuple[re.Pattern[str], Callable[[Mapping[str, str]], Expectation]], ...] = (
    (re.compile(rf"pod (?P<pod>{_NAME}) runs"), lambda m: PodRuns(m["pod"])),
    (
        re.compile(rf"pod (?P<pod>{_NAME}) stays pending(: (?P<text>.+))?"),
        lambda m: PodPends(m["pod"], m["text"] or ""),
    ),
    (
        re.compile(rf"claim {_CLAIM} is refused(: (?P<text>.+))?"),
        lambda m: ClaimRefused(m["claim"], m["text"] or ""),
    ),
    (
        re.compile(rf"claim {_CLAIM} holds (?P<count>\d+)( where (?P<tests>.+))?"),
        lambda m: ClaimHolds(m["claim"], int(m["count"]), _tests(m["tests"])),
    ),
    (
        re.compile(rf"claim {_CLAIM} takes (?P<amount>\S+) of (?P<capacity>\S+)"),
        lambda m: ClaimTakes(m["claim"], m["amount"], m["capacity"]),
    ),
    (
        re.compile(rf"claim {_CLAIM} agrees on (?P<attribute>\S+/\S+)"),
        lambda m: ClaimAgrees(m["claim"], m["attribute"]),
    ),
    (
        re.compile(rf"container (?P<container>{_NAME}/{_NAME}) has (?P<count>\d+) nodes? (?P<pattern>\S+)"),
        lambda m: ContainerHasNodes(m["container"], int(m["count"]), m["pattern"]),
    ),
    (
        re.compile(rf"container (?P<container>{_NAME}/{_NAME}) has env (?P<name>[A-Za-z_]\w*)=(?P<pattern>.*)"),
        lambda m: ContainerHasEnv(m["container"], m["name"], m["pattern"]),
    ),
    (
        re.compile(
            rf"containers (?P<one>{_NAME}/{_NAME}) (?P<two>{_NAME}/{_NAME}) see (?P<how>the same|different) nodes"
        ),
        lambda m: ContainersSee(m["one"], m["two"], m["how"] == "the same"),
    ),
)


def load_examples(folder: Path) -> list[Example]:
    """Read every YAML file of a folder, in the order of names.

    Raises: InputError if there is none, or if a file is wrong.
    """
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if not paths:
        raise InputError("no-examples", f"no YAML file in {folder}")
    return [load_example(path) for path in paths]


def load_example(path: Path) -> Example:
    """Read one file. Raises: InputError with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError("unreadable", f"{path}: {fault}") from fault
    found = list(load_objects(path, text))
    quotas = tuple(wire for wire in found if wire["kind"] == quotas_room.KIND)
    objects = tuple(workloads.expand(wire for wire in found if wire not in quotas))
    expects = tuple(_sentences(path, text))
    if not expects:
        raise _fault(path, 1, "no line begins with '# expect:'")
    known = _names(objects)
    for sentence in expects:
        for kind, name in _mentioned(sentence.meaning):
            if name not in known[kind]:
                raise _fault(path, sentence.line, f"there is no {kind} {name} in this file")
    return Example(path, _intent(text), objects, expects, quotas)


def load_objects(path: Path, text: str) -> Iterator[Wire]:
    """Yield the Kubernetes objects of a file. Raises: InputError."""
    import yaml  # noqa: PLC0415  (loaded when there is a file to read)

    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        raise _fault(path, mark.line + 1 if mark else 1, str(getattr(fault, "problem", fault))) from fault
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict) or not (document.get("metadata") or {}).get("name"):
            raise _fault(path, 1, f"document {number} is not a Kubernetes object with a name")
        if workloads.is_workload(document) or document.get("kind") == quotas_room.KIND:
            yield document
            continue
        try:
            kind_of(document)
        except ApiRefusal:
            what = f"{document.get('apiVersion')} {document.get('kind')}"
            raise _fault(path, 1, f"document {number}: {what} is not served here") from None
        yield document


def _sentences(path: Path, text: str) -> Iterator[Sentence]:
    for number, line in enumerate(text.splitlines(), 1):
        if mark := _MARK.match(line.strip()):
            written = mark["text"].strip()
            yield Sentence(written, number, _meaning(path, number, written))


def _meaning(path: Path, line: int, text: str) -> Expectation:
    for pattern, make in _SENTENCES:
        if match := pattern.fullmatch(text):
            try:
                return make(match.groupdict())
            except ValueError as fault:
                raise _fault(path, line, str(fault)) from fault
    raise _fault(path, line, f"{text!r} is not a known expectation", "see dra-driver demo --help")


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


def _mentioned(meaning: Expectation) -> list[tuple[str, str]]:
    if isinstance(meaning, PodRuns | PodPends):
        return [("pod", meaning.pod)]
    if isinstance(meaning, ClaimRefused | ClaimHolds | ClaimTakes | ClaimAgrees):
        return [("claim", meaning.claim)]
    if isinstance(meaning, ContainersSee):
        return [("container", meaning.first), ("container", meaning.second)]
    return [("container", meaning.container)]


def _fault(path: Path, line: int, why: str, hint: str = "") -> InputError:
    return InputError("example", f"{path}:{line}: {why}", hint=hint)
