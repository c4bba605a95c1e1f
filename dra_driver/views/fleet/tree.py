"""A tree of branches as a document, and whether it needs attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.fleet.picture import Branch


def has_flags(branches: Iterable[Branch]) -> bool:
    """Return whether any branch, or one below it, has a flag."""
    return any(branch.flags or has_flags(branch.children) for branch in branches)


def tree_document(kind: DocumentKind, branches: Sequence[Branch]) -> OutputDocument:
    """Return the document of a tree."""
    return OutputDocument(kind, [asdict(branch) for branch in branches])
