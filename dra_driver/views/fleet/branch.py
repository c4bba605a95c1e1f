"""The branches of which the picture of a cluster is made, as a value and as a document.

In: names and text. Out: a tree of `Branch`es.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from dra_driver.views.envelope import DocumentKind, OutputDocument


@dataclass(slots=True)
class Branch:
    """One line of the tree. `kind` is node, pool, set, device, claim or pod.

    `like` lists further nodes whose subtrees are the same except for the nodes' own names.
    """

    kind: str
    name: str
    text: str = ""
    fill: float | None = None
    flags: tuple[str, ...] = ()
    children: list[Branch] = field(default_factory=list)
    like: tuple[str, ...] = ()


def has_flags(branches: Iterable[Branch]) -> bool:
    """Return whether any branch, or one below it, has a flag."""
    return any(branch.flags or has_flags(branch.children) for branch in branches)


def tree_document(kind: DocumentKind, branches: Sequence[Branch]) -> OutputDocument:
    """Return the document of a tree."""
    return OutputDocument(kind, [asdict(branch) for branch in branches])
