"""Bring the board up to date with what the watches of a cluster report.

In: messages from the console. Out: a changed board. An object that does not have the shape of its kind is left out.
"""

from __future__ import annotations

import json

from dra_driver.documents.shared_values import SharedValues
from dra_driver.model.errors import DriverError
from dra_driver.model.wire import Wire
from dra_driver.views.board.board import Board
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.web.worker.alike_slices import AlikeSlices
from dra_driver.web.worker.board_updates import BoardUpdate, KindUnreadable, ObjectChanged, PageRead, VersionRead


class UpdateApplier:
    """Applies updates to a board. Parts that many slices have in common are kept in memory once."""

    def __init__(self) -> None:
        self._values, self._alike = SharedValues(), AlikeSlices()
        self._checker = ShapeChecker()

    def apply(self, board: Board, update: BoardUpdate) -> None:
        """Apply one update to the board."""
        match update:
            case PageRead(kind, _, is_first, is_last, namespace):
                board.page(kind, self._objects(update), is_first=is_first, is_last=is_last, namespace=namespace)
            case ObjectChanged(kind, wire, True):
                board.delete(kind, wire)
            case ObjectChanged(kind, wire, False):
                if self._has_shape(kind, wire):
                    board.change(kind, wire)
            case KindUnreadable(unseen):
                board.mark_unreadable(unseen)
            case VersionRead(kubernetes):
                board.set_version(kubernetes)

    def _objects(self, page: PageRead) -> list[Wire]:
        objects = json.loads(page.objects)["items"]
        for wire in objects:
            self._values.share(wire)
        objects = [wire for wire in objects if self._has_shape(page.kind, wire)]
        if page.kind != "ResourceSlice":
            return objects
        if page.is_first:
            self._alike = AlikeSlices()  # a list has each slice once
        return [self._alike.fold(wire) for wire in objects]

    def _has_shape(self, kind: str, wire: Wire) -> bool:
        try:
            self._checker.check(kind, wire, "cluster")
        except DriverError:
            return False
        return True
