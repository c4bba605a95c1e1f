"""GPUs for virtual machines, as the agent sees them: named by rules, passed through, and checked on their return."""

import json
from pathlib import Path

from dra_driver.model.errors import LedgerError
from dra_driver.store.state import Part, StatePart

# What `remembered_gpus` keeps: one JSON document. It exists as soon as a GPU could be passed through.
PART = Part(
    "passthrough",
    "passthrough-damaged",
    {"passthrough": "body TEXT NOT NULL"},
    older="passthrough.json",
    check=lambda text: json.loads(text).items(),
)


def may_be_away(folder: Path) -> bool:
    """Return whether a virtual machine may have a GPU of this node: one could be passed through, or that is unknown."""
    try:
        return StatePart(folder, PART).read(
            lambda connection: connection.execute("SELECT 1 FROM passthrough").fetchone() is not None, nothing=False
        )
    except LedgerError:
        return True
