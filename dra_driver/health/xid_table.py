"""The Xid table: what each of the driver's error codes means, for GPUs on which the driver itself does not report it.

In: a code. Out: its row, with the action that NVIDIA's catalogue gives, the class that this driver derives from it, and
the source. A code that is not in the table gets the row of an unknown code, which a person has to look at.

Sources: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, sheet of 2025-10-29) for the actions; the headers of
NVIDIA's open kernel modules, release 595, for codes that the catalogue lacks. Where the catalogue gives no action, the
class is this driver's own judgement, and the source says so.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache

LAST_CODE = 176
FALLEN_OFF_BUS = 79
# The driver ended a process that made an error: no action is needed, but the user of the process should learn of it.
STOPPED_PROCESSING = 43
CATALOGUE = "catalogue"
OWN_JUDGEMENT, MODULES = "own judgement: catalogue without an action", "own judgement: kernel modules 595"


class XidClass(enum.StrEnum):
    """What an Xid requires, from the mildest to the worst."""

    INFORMATION = "information"  # no action
    APPLICATION = "application"  # the process made the error, or has ended; the GPU can serve the next one
    FOLLOW = "follow"  # accompanies another Xid or the recovery action, which decide what to do
    LINK = "link"  # an NVLink is faulty
    RESET = "reset"  # the GPU needs a reset
    REBOOT = "reboot"  # the machine needs a reboot
    SUPPORT = "support"  # a person has to examine it

    @property
    def is_harmless(self) -> bool:
        """Whether the GPU may serve the next claim at once."""
        return self in {XidClass.INFORMATION, XidClass.APPLICATION, XidClass.FOLLOW}

    @property
    def rank(self) -> int:
        """How bad the class is, for choosing the worst of several."""
        return list(XidClass).index(self)


@dataclass(frozen=True, slots=True)
class XidRow:
    """One row. `action` is the catalogue's word for the action, "" if it has none."""

    code: int
    kind: XidClass
    action: str
    source: str


def _codes(text: str) -> list[int]:
    """Return the numbers of a list such as "8, 39-41"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


_SECTIONS = (
    (
        XidClass.APPLICATION,
        "RESTART_APP",
        "8, 11, 13, 25, 31, 32, 39-41, 60, 68-72, 75-77, 80, 82-86, 88, 89, 94, 96-105, 126-135, 139",
        CATALOGUE,
    ),
    (
        XidClass.INFORMATION,
        "IGNORE",
        "14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106-108, 121, 137, 141, 152, 153, 157, 160, 161",
        CATALOGUE,
    ),
    (XidClass.RESET, "RESET_GPU", "46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158", CATALOGUE),
    (XidClass.RESET, "WORKFLOW_XID_48", "48", CATALOGUE),
    (XidClass.REBOOT, "RESTART_BM", "79", CATALOGUE),
    (XidClass.REBOOT, "RESTART_VM", "151", CATALOGUE),
    (XidClass.FOLLOW, "WORKFLOW_XID_45", "45", CATALOGUE),
    (XidClass.FOLLOW, "XID_154", "154", CATALOGUE),
    (XidClass.LINK, "WORKFLOW_NVLINK_ERR", "74", CATALOGUE),
    (XidClass.LINK, "WORKFLOW_NVLINK5_ERR", "144-150", CATALOGUE),
    (XidClass.SUPPORT, "CHECK_MECHANICALS", "54", CATALOGUE),
    (XidClass.SUPPORT, "UPDATE_SWFW", "78", CATALOGUE),
    (XidClass.SUPPORT, "CHECK_UVM", "159", CATALOGUE),
    (
        XidClass.SUPPORT,
        "CONTACT_SUPPORT",
        "1-7, 9, 10, 12, 15-24, 26-30, 33-36, 42, 47, 49-53, 55-59, 61, 65, 73, 81, 87, 90, 91, 111-118",
        CATALOGUE,
    ),
    (
        XidClass.SUPPORT,
        "CONTACT_SUPPORT",
        "122-125, 138, 142",
        CATALOGUE,
    ),
    (XidClass.INFORMATION, "", "162, 163, 171, 172", OWN_JUDGEMENT),
    (XidClass.SUPPORT, "", "164-166, 168, 170", OWN_JUDGEMENT),
    (XidClass.RESET, "", "167, 169", OWN_JUDGEMENT),
    (XidClass.RESET, "", "173", MODULES),
    (XidClass.SUPPORT, "", "174, 175", MODULES),
    (XidClass.INFORMATION, "", "176", MODULES),
)


def is_application_error(code: int) -> bool:
    """Return whether an Xid reports an error of a process, of which the pods that use the GPU are informed."""
    return code == STOPPED_PROCESSING or row_of(code).kind is XidClass.APPLICATION


@lru_cache(1)
def table() -> dict[int, XidRow]:
    """Return all rows by code, in order."""
    rows = {
        code: XidRow(code, kind, action, source) for kind, action, codes, source in _SECTIONS for code in _codes(codes)
    }
    return dict(sorted(rows.items()))


def row_of(code: int) -> XidRow:
    """Return the row of a code. An unknown code gets a row that asks for a person to examine it.

    >>> row_of(109).kind.value, row_of(13).kind.is_harmless, row_of(9999).source
    ('reset', True, 'unknown code')
    """
    return table().get(code) or XidRow(code, XidClass.SUPPORT, "", "unknown code")
