"""The table of attributes and capacities of Gaudi accelerators, in the domain of their driver.

The names, kinds and values of Intel's own driver come first; then those of Kubernetes and our own.

Source: attributes of intel/intel-resource-drivers-for-kubernetes v0.11, Gaudi v0.7 (model, healthy).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dra_driver.hardware.gaudi.facts import GaudiCard
from dra_driver.hardware.published import values
from dra_driver.hardware.published.rows import (
    ALL,
    EVERY,
    MEMORY,
    PASSED,
    STANDARD_ATTRIBUTES,
    Fact,
    Owner,
    Published,
    ValueKind,
)
from dra_driver.hardware.published.values import of_gpu

_OF_ITS_DRIVER = ("healthy", "hasVerbs")  # not known of a card that a virtual machine has


def _row(
    name: str, kind: ValueKind, meaning: str, read: Callable[[GaudiCard], Fact], owner: Owner = Owner.OURS
) -> Published:
    types = ALL if name in _OF_ITS_DRIVER else EVERY
    return Published(name, kind, meaning, types, of_gpu(GaudiCard, read), owner=owner, since="0.2.0")


def _id(card: GaudiCard) -> str | None:
    return None if card.device_id is None else f"0x{card.device_id:04x}"


GAUDI_ROWS: tuple[Published, ...] = (
    _row(
        "model",
        ValueKind.STRING,
        "Model, such as `Gaudi2`; for a device id that our table lacks, the id itself.",
        lambda card: card.model or _id(card),
        Owner.VENDOR,
    ),
    _row(
        "healthy",
        ValueKind.BOOL,
        "Whether the kernel driver reports the card as operational; absent where it reports no status.",
        lambda card: card.is_healthy,
        Owner.VENDOR,
    ),
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    Published(
        "type",
        ValueKind.STRING,
        "`gaudi`, or `vfio` for a card for a virtual machine.",
        EVERY,
        lambda found: found.type.value if found.is_passed else "gaudi",
        owner=Owner.OURS,
        since="0.2.0",
    ),
    *PASSED,
    _row("pciId", ValueKind.STRING, "PCI device id, such as `0x1020`.", _id),
    _row(
        "moduleID",
        ValueKind.INT,
        "Slot of the card on its board, on which the ports of its network depend.",
        lambda card: card.module_id,
    ),
    _row(
        "hasVerbs",
        ValueKind.BOOL,
        "Whether the card has an InfiniBand device, which its network driver creates.",
        lambda card: bool(card.verbs),
    ),
    _row(
        "memoryIsNominal",
        ValueKind.BOOL,
        "True where memory is that of the model, because no file reports the card's own.",
        lambda card: True if card.memory_bytes else None,
    ),
    Published(
        "driverVersion",
        ValueKind.VERSION,
        "Version of the kernel driver, its first three numbers; absent where it reports none.",
        ALL,
        lambda found: found.driver_version,
        owner=Owner.OURS,
        since="0.2.0",
    ),
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "Memory of the model (see memoryIsNominal). Absent for models that our table lacks.",
        EVERY,
        values.memory,
        unit="bytes",
        owner=Owner.OURS,
        since="0.2.0",
    ),
)
