"""Budget: what is left of the counters that overlapping devices share.

In: slices of a node, and the devices that claims hold. Out: whether one more device fits. Everything held is taken from
the counters as they are published now. Source: Kubernetes KEP-4815, partitionable devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from dra_driver.model.quantity import Quantity
from dra_driver.model.wire import DeviceWire, SliceWire

Key = tuple[str, str, str, str]  # driver, pool, counter set, counter


class Budget:
    """The counters of the pools that a node can reach."""

    def __init__(self, slices: Iterable[SliceWire], node: str) -> None:
        self._left: Counter[Key] = Counter()
        for spec in (one["spec"] for one in slices):
            if spec.get("nodeName") == node or spec.get("allNodes"):
                for shared in spec.get("sharedCounters") or ():
                    for name, counter in shared["counters"].items():
                        key = (spec["driver"], spec["pool"]["name"], shared["name"], name)
                        self._left[key] = _number(counter["value"])

    def fits(self, driver: str, pool: str, device: DeviceWire) -> bool:
        """Say whether enough is left for a device."""
        return all(self._left[key] >= amount for key, amount in _consumed(driver, pool, device))

    def take(self, driver: str, pool: str, device: DeviceWire) -> None:
        """Take what a device consumes."""
        self._left.subtract(dict(_consumed(driver, pool, device)))

    def give_back(self, driver: str, pool: str, device: DeviceWire) -> None:
        """Give back what a device consumed."""
        self._left.update(dict(_consumed(driver, pool, device)))


def _consumed(driver: str, pool: str, device: DeviceWire) -> Iterator[tuple[Key, int]]:
    for entry in device.get("consumesCounters") or ():
        for name, counter in entry["counters"].items():
            yield (driver, pool, entry["counterSet"], name), _number(counter["value"])


def _number(text: str) -> int:
    return math.ceil(Quantity.parse(text).value)
