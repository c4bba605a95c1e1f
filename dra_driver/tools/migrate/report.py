"""The report of a migration: each change with its reason, each loss with its remedy.

Out: frozen rows, in the order of the text. `code` is stable; docs/migrate.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Step = str | int


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `path` leads to it inside `subject`, for example `spec.containers[0].resources`."""

    code: str
    subject: str
    path: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class MigrationLoss:
    """Something that is lost, left unchanged, or needs attention; `remedy` explains what to do."""

    code: str
    subject: str
    path: str
    what: str
    remedy: str


@dataclass(slots=True)
class FileReport:
    """The rows about one file; each step that changes the file appends its own."""

    changes: list[Change] = field(default_factory=list)
    losses: list[MigrationLoss] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReportSubject:
    """A place in one object of a file; rows about it go to `report`."""

    name: str
    report: FileReport
    path: tuple[Step, ...] = ()

    def below(self, *steps: Step) -> ReportSubject:
        """Return a place inside this one."""
        return ReportSubject(self.name, self.report, (*self.path, *steps))

    def changed(self, code: str, what: str, why: str, *steps: Step) -> None:
        """Record a change at this place or below it."""
        self.report.changes.append(Change(code, self.name, shown_path((*self.path, *steps)), what, why))

    def lost(self, code: str, what: str, remedy: str, *steps: Step) -> None:
        """Record a loss at this place or below it, unless the same row exists already."""
        row = MigrationLoss(code, self.name, shown_path((*self.path, *steps)), what, remedy)
        if row not in self.report.losses:
            self.report.losses.append(row)


def shown_path(path: tuple[Step, ...]) -> str:
    """Return a path as a report shows it.

    >>> shown_path(("spec", "containers", 0, "resources"))
    'spec.containers[0].resources'
    """
    made = ""
    for step in path:
        made += f"[{step}]" if isinstance(step, int) else f".{step}" if made else step
    return made


# Objects of a file, found in documents and Lists, each with its name, its namespace and the list that holds it.

TEMPLATE = "ResourceClaimTemplate"
_MAX_LISTS = 4


@dataclass(frozen=True, slots=True)
class KubeObject:
    """One object. `holder` is the `items` list that contains it; None for a document of its own."""

    wire: dict[str, Any]
    path: tuple[Step, ...]
    holder: list[Any] | None = None
    list_kind: str = ""

    @property
    def kind(self) -> str:
        """The object's kind, which the entries of a typed list may leave out."""
        return str(self.wire.get("kind") or self.list_kind)

    @property
    def stem(self) -> str:
        """The object's name or the beginning of it (generateName); its kind if it has neither."""
        metadata = self.wire.get("metadata")
        found = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
        return found if isinstance(found, str) and found else self.kind.lower()

    @property
    def namespace(self) -> str:
        """The object's namespace; "" if the manifest does not name one."""
        metadata = self.wire.get("metadata")
        found = metadata.get("namespace") if isinstance(metadata, dict) else None
        return found if isinstance(found, str) else ""

    @property
    def title(self) -> str:
        """The object's kind and name as a report shows them."""
        return f"{self.kind} {self.stem}"


def objects_of(
    value: Any, path: tuple[Step, ...] = (), holder: list[Any] | None = None, kind: str = ""
) -> Iterator[KubeObject]:
    """Yield the objects of a document; nothing if the value is not an object."""
    if len(path) > 2 * _MAX_LISTS or not isinstance(value, dict):
        return
    items = value.get("items")
    listed = str(value.get("kind") or "")
    if isinstance(items, list) and listed.endswith("List"):
        for number, one in enumerate(list(items)):
            yield from objects_of(one, (*path, "items", number), items, listed.removesuffix("List"))
        return
    if isinstance(value.get("kind"), str) or kind:
        yield KubeObject(value, path, holder, kind)


def claim_template(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaimTemplate."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    group = "resource.k8s.io/v1"
    return {"apiVersion": group, "kind": TEMPLATE, "metadata": metadata, "spec": {"spec": spec}}
