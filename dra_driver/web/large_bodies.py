"""Limit how much of what viewers send is in memory at a time: only some large bodies are read and answered at once.

In: the backend of a request with a large body. Out: a place, when its turn comes. Meanwhile its body is not read.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from weakref import WeakKeyDictionary

from dra_driver.web.backend import Backend
from dra_driver.web.places import BackendPlaces, SharedPlaces


class LargeBodies:
    """The places of one server. Call it in the event loop."""

    def __init__(self) -> None:
        self._places = SharedPlaces(2, 1, 16)
        self._of_backends: WeakKeyDictionary[Backend, BackendPlaces] = WeakKeyDictionary()

    def place(self, backend: Backend) -> AbstractAsyncContextManager[None]:
        """Return a context that waits for a place, and holds it. Entering raises: NoPlaceError."""
        if backend not in self._of_backends:
            self._of_backends[backend] = self._places.of_backend()
        return self._of_backends[backend].place()
