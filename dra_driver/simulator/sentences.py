"""The sentences in which example files state what they expect.

In: the text after `# expect:`. Out: an `Expectation`, and the objects that it refers to.

    pod NAME runs
    pod NAME stays pending[: TEXT IN THE REASON]
    claim CLAIM is refused[: TEXT IN THE REASON]
    claim CLAIM holds COUNT [where ATTRIBUTE=VALUE CAPACITY>=QUANTITY …]
    claim CLAIM takes QUANTITY of CAPACITY
    claim CLAIM agrees on DOMAIN/ATTRIBUTE
    claim CLAIM says NAME=PATTERN in its status
    container POD/CONTAINER has COUNT node[s] PATTERN
    container POD/CONTAINER has env NAME=PATTERN
    container POD/CONTAINER reads NAME=PATTERN for REQUEST
    containers POD/CONTAINER POD/CONTAINER see the same|different nodes
    the node has label NAME=PATTERN

CLAIM is the name of a ResourceClaim, or POD/ENTRY for a claim that is made from a template. The pods of a Deployment or
Job are NAME-0 and so on (`workloads`). Patterns are those of a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
class ClaimStatusHas:
    """For one of the claim's devices, status.devices has this value: a condition's status, or a value in its data."""

    claim: str
    name: str
    pattern: str


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
class ContainerReads:
    """The container's file about a request gives this value for an attribute of one of the request's devices."""

    container: str
    request: str
    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class NodeHasLabel:
    """The node has a label, from the file of Node Feature Discovery, whose value matches a pattern."""

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
    | ClaimStatusHas
    | ContainerHasNodes
    | ContainerHasEnv
    | ContainerReads
    | ContainersSee
    | NodeHasLabel
)


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
        re.compile(rf"claim {_CLAIM} says (?P<name>\w+)=(?P<pattern>\S+) in its status"),
        lambda m: ClaimStatusHas(m["claim"], m["name"], m["pattern"]),
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
            rf"container (?P<container>{_NAME}/{_NAME}) reads (?P<name>[^\s=]+)=(?P<pattern>\S+)"
            rf" for (?P<request>{_NAME})"
        ),
        lambda m: ContainerReads(m["container"], m["request"], m["name"], m["pattern"]),
    ),
    (
        re.compile(r"the node has label (?P<name>[^\s=]+)=(?P<pattern>\S+)"),
        lambda m: NodeHasLabel(m["name"], m["pattern"]),
    ),
    (
        re.compile(
            rf"containers (?P<one>{_NAME}/{_NAME}) (?P<two>{_NAME}/{_NAME}) see (?P<how>the same|different) nodes"
        ),
        lambda m: ContainersSee(m["one"], m["two"], m["how"] == "the same"),
    ),
)


def meaning_of(text: str) -> Expectation | None:
    """Return what a sentence expects; None if it is not one of the sentences above.

    Raises: ValueError if the part after `where` is wrong.
    """
    for pattern, make in _SENTENCES:
        if match := pattern.fullmatch(text):
            return make(match.groupdict())
    return None


def mentioned(meaning: Expectation) -> list[tuple[str, str]]:
    """Return the kind (pod, claim or container) and the name of each object that an expectation refers to."""
    if isinstance(meaning, PodRuns | PodPends):
        return [("pod", meaning.pod)]
    if isinstance(meaning, ClaimRefused | ClaimHolds | ClaimTakes | ClaimAgrees | ClaimStatusHas):
        return [("claim", meaning.claim)]
    if isinstance(meaning, NodeHasLabel):
        return []
    if isinstance(meaning, ContainersSee):
        return [("container", meaning.first), ("container", meaning.second)]
    return [("container", meaning.container)]
