"""The branches that make up the tree of a cluster, as values and as a document.

In: names and text. Out: a tree of `Branch`es.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain


@dataclass(frozen=True, slots=True)
class BranchFlag:
    """Something that deserves a reader's attention; `code` is stable."""

    code: str
    message: str

    def __str__(self) -> str:
        """Return the message."""
        return self.message


@dataclass(slots=True)
class Branch:
    """One line of the tree.

    `kind` is node, pool, set (the devices of one GPU), device, claim or pod, or file for a line that only people see.
    `text` is for people; `facts` are the same content for programs; `fill` is the fraction that is held, from 0 to 1.
    `like` lists further nodes whose subtrees are the same except for the nodes' own names.
    """

    kind: str
    name: str
    text: str = ""
    fill: float | None = None
    flags: tuple[BranchFlag, ...] = ()
    children: list[Branch] = field(default_factory=list)
    like: tuple[str, ...] = ()
    facts: Wire = field(default_factory=dict)


def has_flags(branches: Iterable[Branch]) -> bool:
    """Return whether any of the branches, or any branch below them, has a flag."""
    return any(branch.flags or has_flags(branch.children) for branch in branches)


def tree_document(kind: DocumentKind, branches: Sequence[Branch], more: Wire) -> OutputDocument:
    """Return the document of a tree: its branches, and the other content in `more`."""
    name = "nodes" if str(kind) == "SliceTree" else "claims"
    return OutputDocument(kind, {name: [branch_document(one) for one in branches], **more})


def branch_document(branch: Branch) -> Wire:
    """Return the document of a branch and of everything below it."""
    return {
        "kind": branch.kind,
        "name": branch.name,
        "like": list(branch.like),
        "heldFraction": None if branch.fill is None else round(branch.fill, 3),
        "flags": plain(branch.flags),
        "facts": branch.facts,
        "children": [branch_document(child) for child in branch.children],
    }
