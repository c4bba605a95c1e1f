"""Keep a fleet up to date with two watches, whose lists are read in small pages.

In: the API server's ResourceSlices and DeviceClasses. Out: an up-to-date `PublishedFleet`. Never more than one page of
slices is in memory, neither at the start nor when everything is listed again because the server no longer has the
changes since the last one that was seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import CLASSES, SLICES
from dra_driver.kube.watch import Watch
from dra_driver.kube.watch_events import Changed, Deleted, Listed
from dra_driver.model.wire import Wire
from dra_driver.webhook.fleet import PublishedFleet

SLICES_A_PAGE = 25  # slices of up to 128 devices, which take some 15 MiB as wire objects
CLASSES_A_PAGE = 50


class FleetWatch:
    """Two threads that keep a fleet up to date."""

    def __init__(self, api: KubeApi, fleet: PublishedFleet) -> None:
        slices = Watch(api, SLICES, page_size=SLICES_A_PAGE)
        classes = Watch(api, CLASSES, page_size=CLASSES_A_PAGE)
        self._watches = (slices, classes)
        self._threads = (
            _thread(
                slices, fleet.replace_slices, fleet.put_slice, lambda wire: fleet.drop_slice(wire["metadata"]["uid"])
            ),
            _thread(
                classes, fleet.replace_classes, fleet.put_class, lambda wire: fleet.drop_class(wire["metadata"]["name"])
            ),
        )

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End both threads."""
        for watch in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(timeout_s)


def _thread(
    watch: Watch, replace: Callable[..., None], put: Callable[[Wire], None], drop: Callable[[Wire], None]
) -> threading.Thread:
    def follow() -> None:
        for event in watch.events():
            if isinstance(event, Listed):
                replace(event.objects, is_first=event.is_first, is_last=event.is_last)
            elif isinstance(event, Changed):
                put(event.wire)
            elif isinstance(event, Deleted):
                drop(event.wire)
            del event  # otherwise this page would stay in memory while the next one is read

    return threading.Thread(target=follow, name="fleet", daemon=True)
