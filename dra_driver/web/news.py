"""News for the board: what watches of a cluster say, as messages from the console to the desk.

In: messages. Out: a board that is as new as they are. An object that does not have the shape of its kind is left out.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

from dra_driver.documents.json_stream import load_json
from dra_driver.model.errors import DriverError
from dra_driver.model.wire import Wire
from dra_driver.views.access import UnseenObjects
from dra_driver.views.board.board import Board
from dra_driver.views.objects.equal_slices import EqualSlices
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.progress import NoProgress


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page of a list. `objects` is JSON: the desk makes its own objects of it."""

    kind: str
    objects: bytes
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """An object that was added or modified, or is gone."""

    kind: str
    wire: Wire
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class KindHidden:
    """Objects that may not be read."""

    unseen: UnseenObjects


@dataclass(frozen=True, slots=True)
class ServerKnown:
    """The version of the cluster."""

    kubernetes: str


_DECODER = json.JSONDecoder()
BoardNews = PageRead | ObjectChanged | KindHidden | ServerKnown


class NewsTaker:
    """Takes news for a board. What many slices have in common is kept once."""

    def __init__(self) -> None:
        self._slices = EqualSlices(NoProgress("", 0))
        self._checker = ShapeChecker()

    def apply(self, board: Board, news: BoardNews) -> None:
        """Change the board as a message says."""
        match news:
            case PageRead(kind, _, is_first, is_last):
                board.page(kind, self._objects(news), is_first=is_first, is_last=is_last)
            case ObjectChanged(kind, wire, True):
                board.delete(kind, wire)
            case ObjectChanged(kind, wire, False):
                if self._has_shape(kind, wire):
                    board.change(kind, wire)
            case KindHidden(unseen):
                board.hide(unseen)
            case ServerKnown(kubernetes):
                board.serve(kubernetes)

    def _objects(self, page: PageRead) -> list[Wire]:
        if page.kind == "ResourceSlice" and page.is_first:
            self._slices = EqualSlices(NoProgress("", 0))  # it takes each node once
        found = load_json(io.BytesIO(page.objects), self._slices, _DECODER)["items"]
        return [one for one in found if self._has_shape(page.kind, one)]

    def _has_shape(self, kind: str, wire: Wire) -> bool:
        try:
            self._checker.check(kind, wire, "cluster")
        except DriverError:
            return False
        return True
