"""Objects of a file, found in documents and Lists, each with its name, its namespace and the list that holds it.

In: the plain value of a document. Out: `KubeObject`s, in order; ResourceClaimTemplates built for claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_driver.migrate.report import Step

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
