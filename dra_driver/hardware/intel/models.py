"""Models and families of Intel's GPUs by PCI device id.

Source: the names that Intel's DRA driver publishes (v0.11), so that selectors written for it work; the PCI ID database
for integrated GPUs. An id that is not here has no name, and the id itself is published instead.
"""

from __future__ import annotations

from dataclasses import dataclass

_ARC_A, _PRO_A, _FLEX, _MAX = "Arc A-Series", "Arc Pro A-Series", "Data Center Flex", "Data Center Max"
_ARC_B, _PRO_B, _IRIS, _PLAIN = "Arc B-Series", "Arc Pro B-Series", "Iris Xe", "Intel Graphics"


@dataclass(frozen=True, slots=True)
class IntelModel:
    """A model. `is_integrated` is true if it is part of a processor."""

    name: str
    family: str
    is_integrated: bool = False


_MODELS = {
    0x0B69: IntelModel("Max 1550", _MAX),
    0x0BD0: IntelModel("Max 1550", _MAX),
    0x0BD5: IntelModel("Max 1550", _MAX),
    0x0BD6: IntelModel("Max 1450", _MAX),
    0x0BD9: IntelModel("Max 1100", _MAX),
    0x0BDA: IntelModel("Max 1100", _MAX),
    0x0BDB: IntelModel("Max 1100", _MAX),
    0x4626: IntelModel("Alder Lake-P", _IRIS, is_integrated=True),
    0x56A0: IntelModel("A770", _ARC_A),
    0x56A1: IntelModel("A750", _ARC_A),
    0x56A2: IntelModel("A580", _ARC_A),
    0x56A5: IntelModel("A380", _ARC_A),
    0x56A6: IntelModel("A310", _ARC_A),
    0x56B0: IntelModel("A30M", _PRO_A),
    0x56B1: IntelModel("A40/A50", _PRO_A),
    0x56B2: IntelModel("A60M", _PRO_A),
    0x56B3: IntelModel("A60", _PRO_A),
    0x56C0: IntelModel("Flex 170", _FLEX),
    0x56C1: IntelModel("Flex 140", _FLEX),
    0x7D67: IntelModel("Arrow Lake-S", _PLAIN, is_integrated=True),
    0x9A40: IntelModel("Tiger Lake-LP GT2", _IRIS, is_integrated=True),
    0x9A49: IntelModel("Tiger Lake-LP GT2", _IRIS, is_integrated=True),
    0xA7A0: IntelModel("Raptor Lake-P", _IRIS, is_integrated=True),
    **{0xB080 + n: IntelModel("B370" if n % 2 else "B390", _ARC_B, is_integrated=True) for n in range(8)},
    0xE20B: IntelModel("B580", _ARC_B),
    0xE20C: IntelModel("B570", _ARC_B),
    0xE211: IntelModel("B60", _PRO_B),
    0xE212: IntelModel("B50", _PRO_B),
    0xE222: IntelModel("B65", _PRO_B),
    0xE223: IntelModel("B70", _PRO_B),
}


def model_of(device_id: int | None) -> IntelModel | None:
    """Return the model of a PCI device id, or None if the table lacks it.

    >>> model_of(0xE20B).name, model_of(0x1234)
    ('B580', None)
    """
    return _MODELS.get(device_id) if device_id is not None else None
