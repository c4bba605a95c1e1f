"""What deserves attention in a fleet, and how many devices each namespace and class holds.

In: a board. Out: a document with every flag of the tree that `dra-driver slices` draws, with its place, and with what
each namespace and class of devices holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dra_driver.model.wire import Wire
from dra_driver.views.access import unseen_document
from dra_driver.views.board.board import Board
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.fleet.branch import Branch
from dra_driver.views.fleet.slice_tree import slice_tree
from dra_driver.views.fleet.summary import class_rows, namespace_rows

_MAX = 500
_MAX_HOLDERS = 200


def attention(board: Board) -> OutputDocument:
    """Return the document of all flags. Codes with few flags come first, because they are easily overlooked."""
    claims = board.of("ResourceClaim")
    branches = slice_tree(board.of("ResourceSlice"), claims, None if board.is_live else board.of("Pod") or None)
    flags = list(_flags(branches))
    counts = Counter(one["code"] for one in flags)
    content = {
        "version": board.version,
        "counts": dict(counts.most_common()),
        "flags": sorted(flags, key=lambda one: (counts[one["code"]], one["code"], one["place"]))[:_MAX],
        "namespaces": plain(namespace_rows(claims)[:_MAX_HOLDERS]),
        "classes": plain(class_rows(claims)[:_MAX_HOLDERS]),
        "unseen": unseen_document(board.world.unseen),
    }
    return OutputDocument(DocumentKind.ATTENTION, content)


def _flags(branches: Iterable[Branch], place: tuple[str, ...] = ()) -> Iterator[Wire]:
    for one in branches:
        here = (*place, one.name)
        for flag in one.flags:
            found = {"code": flag.code, "message": flag.message, "kind": one.kind, "place": " / ".join(here)}
            yield {**found, "nodes": 1 + (len(one.like) if one.kind == "node" else 0)}
        yield from _flags(one.children, here)
