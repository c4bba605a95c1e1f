"""The Kubernetes editions whose verdicts are recorded: a minor version, and which features are on.

In: nothing. Out: editions, each in the form for the oracle and in the form for our own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DRIVER = "dra.example.com"
_KNOWN_SINCE = {"DRAListTypeAttributes": ("1.36", "1.37")}


@dataclass(frozen=True, slots=True)
class Edition:
    """One edition, and who reads the selectors: the scheduler ("stored"), or the API server in a new object ("new")."""

    kubernetes: str
    shares: bool  # the gate DRAConsumableCapacity
    lists: bool = False  # the gate DRAListTypeAttributes
    environment: str = "stored"

    def __str__(self) -> str:
        marks = [self.kubernetes, "shares" * self.shares, "lists" * self.lists, "new" * (self.environment == "new")]
        return " ".join(mark for mark in marks if mark)

    @property
    def gates(self) -> dict[str, bool]:
        """Return the feature gates, by name."""
        return {"DRAConsumableCapacity": self.shares} | ({"DRAListTypeAttributes": True} if self.lists else {})

    def header(self) -> dict[str, Any]:
        """Return the first line of the oracle's input."""
        switches = {"EnableConsumableCapacity": self.shares, "EnableListTypeAttributes": self.lists}
        # Without the gate the scheduler never presents a device as shareable.
        hidden = () if self.shares else ("allowMultipleAllocations",)
        devices = [{key: one[key] for key in one if key not in hidden} for one in DEVICES]
        if self.environment == "new":
            devices = []
        return {"driver": DRIVER, "devices": devices, "features": switches, "environment": self.environment}


SELECTOR_EDITIONS = (
    Edition("1.34", shares=False),
    Edition("1.35", shares=False),
    Edition("1.35", shares=True),
    Edition("1.36", shares=True),
    Edition("1.37", shares=True),
    Edition("1.36", shares=True, lists=True),
    Edition("1.37", shares=True, lists=True),
    *(Edition(version, shares=version > "1.35", environment="new") for version in ("1.34", "1.35", "1.36", "1.37")),
)

# A device with every kind of value, one whose kinds differ, one with nothing, one with lists.
DEVICES: list[dict[str, Any]] = [
    {
        "name": "full",
        "allowMultipleAllocations": True,
        "attributes": {
            "bool": {"bool": True},
            "int": {"int": 7},
            "neg": {"int": -3},
            "string": {"string": "fish"},
            "empty": {"string": ""},
            "model": {"string": "Fish 80GB größe"},
            "ip": {"string": "10.1.2.3"},
            "version": {"version": "1.2.3"},
            "other.example.com/string": {"string": "elsewhere"},
        },
        "capacity": {
            "memory": {"value": "40Gi"},
            "slots": {"value": "7"},
            "frac": {"value": "1500m"},
            "other.example.com/memory": {"value": "1G"},
        },
    },
    {
        "name": "otherwise",
        "attributes": {
            "bool": {"string": "true"},
            "int": {"string": "7"},
            "string": {"int": 1},
            "model": {"bool": False},
            "version": {"string": "1.2.3"},
        },
        "capacity": {"memory": {"value": "42949672960"}, "slots": {"value": "0"}},
    },
    {"name": "bare"},
    {
        "name": "lists",
        "attributes": {
            "bool": {"bool": False},
            "ints": {"ints": [1, 2, 7]},
            "strings": {"strings": ["a", "fish"]},
            "bools": {"bools": [True, False]},
            "versions": {"versions": ["1.0.0", "2.1.0"]},
        },
        "capacity": {"memory": {"value": "0"}},
    },
]
