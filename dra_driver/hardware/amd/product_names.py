"""Names of AMD's products by PCI device and revision, for the boards whose firmware gives none.

Source: the names that libdrm's data/amdgpu.ids and the PCI ID database give the same numbers; servers' boards and what
captures of real machines hold. A number that is not here has no name, and its device id is published all the same.
"""

from __future__ import annotations

_BY_DEVICE = {
    0x66A1: "AMD Instinct MI60 / MI50",
    0x6860: "AMD Radeon Instinct MI25",
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X / MI250",
    0x740F: "AMD Instinct MI210",
    0x7448: "AMD Radeon Pro W7900",
    0x744A: "AMD Radeon Pro W7900 Dual Slot",
    0x745E: "AMD Radeon Pro W7800",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A8: "AMD Instinct MI308X HF",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x74B6: "AMD Instinct MI308X",
    0x74B9: "AMD Instinct MI325X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
    0x75B0: "AMD Instinct MI350X VF",
    0x75B3: "AMD Instinct MI355X VF",
}
_BY_REVISION = {
    (0x150E, 0xC1): "AMD Radeon 890M Graphics",
    (0x150E, 0xC4): "AMD Radeon 880M Graphics",
    (0x150E, 0xD1): "AMD Radeon 890M Graphics",
    (0x1586, 0xC1): "AMD Radeon 8060S Graphics",
    (0x1586, 0xC2): "AMD Radeon 8050S Graphics",
    (0x15BF, 0xC4): "AMD Radeon 780M Graphics",
    (0x15BF, 0xDD): "AMD Radeon 780M Graphics",
    (0x67DF, 0xE7): "AMD Radeon RX 580 Series",
    (0x687F, 0xC1): "AMD Radeon RX Vega",
    (0x687F, 0xC3): "AMD Radeon RX Vega",
    (0x73BF, 0xC0): "AMD Radeon RX 6900 XT",
    (0x73BF, 0xC1): "AMD Radeon RX 6800 XT",
    (0x73BF, 0xC3): "AMD Radeon RX 6800",
    (0x744C, 0xC8): "AMD Radeon RX 7900 XTX",
    (0x744C, 0xCC): "AMD Radeon RX 7900 XT",
    (0x7550, 0xC0): "AMD Radeon RX 9070 XT",
    (0x7550, 0xC3): "AMD Radeon RX 9070",
}


def product_name(device_id: int | None, revision: int | None) -> str | None:
    """Return the name of a product, or None where these numbers have none here.

    >>> product_name(0x74A1, 0), product_name(0x744C, None)
    ('AMD Instinct MI300X', None)
    """
    if device_id is None:
        return None
    return _BY_DEVICE.get(device_id) or _BY_REVISION.get((device_id, -1 if revision is None else revision))
