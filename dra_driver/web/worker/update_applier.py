"""Bring the board up to date with what the watches of a cluster report.

In: messages from the console. Out: a changed board. An object that does not have the shape of its kind, or has no name,
is left out and counted.
"""

from __future__ import annotations

import io
import json

from dra_driver.documents.json_stream import load_json
from dra_driver.model.errors import DriverError
from dra_driver.model.wire import Wire
from dra_driver.views.board.board import Board
from dra_driver.views.objects.equal_slices import EqualSlices
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.progress import NoProgress
from dra_driver.web.worker.board_updates import BoardUpdate, KindUnreadable, ObjectChanged, PageRead, VersionRead
from dra_driver.web.worker.left_out import LeftOut, key_of

_DECODER = json.JSONDecoder()


class UpdateApplier:
    """Applies updates to a board. Parts that many slices have in common are kept in memory once."""

    def __init__(self) -> None:
        self._slices = EqualSlices(NoProgress("", 0))
        self._checker = ShapeChecker()
        self._left_out = LeftOut()

    def apply(self, board: Board, update: BoardUpdate) -> None:
        """Apply one update to the board."""
        match update:
            case PageRead(kind, _, is_first, is_last, namespace):
                board.page(kind, self._objects(update), is_first=is_first, is_last=is_last, namespace=namespace)
                board.mark_left_out(kind, self._left_out.count(kind))
            case ObjectChanged(kind, wire, is_gone):
                self._change(board, kind, wire, is_gone=is_gone)
                board.mark_left_out(kind, self._left_out.count(kind))
            case KindUnreadable(unseen):
                board.mark_unreadable(unseen)
            case VersionRead(kubernetes):
                board.set_version(kubernetes)

    def _change(self, board: Board, kind: str, wire: Wire, *, is_gone: bool) -> None:
        key = key_of(wire)
        if key is None:
            if not is_gone:
                self._left_out.add(kind, "", None)
            return
        self._left_out.discard(kind, key)
        if not is_gone and self._has_shape(kind, wire):
            board.change(kind, wire)
            return
        board.delete(kind, wire)
        if not is_gone:
            self._left_out.add(kind, key[0], key)

    def _objects(self, page: PageRead) -> list[Wire]:
        if page.is_first:
            self._left_out.begin_list(page.kind, page.namespace)
        if page.kind == "ResourceSlice" and page.is_first:
            self._slices = EqualSlices(
                NoProgress("", 0)
            )  # it accepts each node once, and a new list contains all again
        found = load_json(io.BytesIO(page.objects), self._slices, _DECODER)["items"]
        kept = []
        for one in found:
            key = key_of(one)
            if key is not None and self._has_shape(page.kind, one):
                kept.append(one)
            else:
                self._left_out.add(page.kind, page.namespace, key)
        return kept

    def _has_shape(self, kind: str, wire: Wire) -> bool:
        try:
            self._checker.check(kind, wire, "cluster")
        except DriverError:
            return False
        return True
