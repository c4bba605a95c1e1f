"""Names of AMD's products by PCI device and revision, for the boards whose firmware reports none.

Source: libdrm's data/amdgpu.ids and the PCI ID database, for the boards of servers and the GPUs in captures of real
machines. A number that is not here has no name; its device id is published nevertheless.
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
    0x1435: "AMD Custom GPU 0932",
    0x1506: "AMD Radeon 610M",
    0x15C8: "AMD Radeon 740M Graphics",
    0x163F: "AMD Custom GPU 0405",
    0x164E: "AMD Radeon 610M",
    0x1901: "AMD Radeon 740M Graphics",
    0x66AF: "AMD Radeon VII",
    0x687F: "AMD Radeon RX Vega",
    0x73A5: "AMD Radeon RX 6950 XT",
    0x73E3: "AMD Radeon Pro W6600",
    0x7422: "AMD Radeon Pro W6400",
    0x7470: "AMD Radeon Pro W7700",
    0x7483: "AMD Radeon RX 7600M",
}
_BY_REVISION = {  # names, and the revisions that have them
    0x1114: (
        ("AMD Radeon 860M Graphics", "C2 D2 E2 E4 E9 ED F2 F9 FC"),
        ("AMD Radeon 840M Graphics", "C3 D3 E5 EA EE F3 FA FD"),
    ),
    0x150E: (
        ("AMD Radeon 890M Graphics", "C1 C5 C6 C7 D1 D3 E1 E3 E4 F1 F3"),
        ("AMD Radeon 880M Graphics", "C4 D2"),
    ),
    0x1586: (
        ("AMD Radeon 8060S Graphics", "C1 C3 C6 D1"),
        ("AMD Radeon 8050S Graphics", "C2 C4 D2 D4"),
        ("AMD Radeon 8040S Graphics", "D5"),
    ),
    0x15BF: (
        ("AMD Radeon 780M Graphics", "00 02 06 C1 C2 C4 C6 C7 C9 CF D0 D1 D2 D3 D4 D7 D9 DA DD"),
        ("AMD Radeon 760M Graphics", "01 03 05 C3 C8 CB CD D5 D6 DB DC DF F0"),
        ("AMD Radeon 740M Graphics", "07 08 C5 CA CC CE D8 DE"),
    ),
    0x15DD: (
        ("AMD Ryzen Embedded V1807B with Radeon Vega Gfx", "81"),
        ("AMD Ryzen Embedded V1756B with Radeon Vega Gfx", "82"),
        ("AMD Ryzen Embedded V1605B with Radeon Vega Gfx", "83"),
        ("AMD Radeon Vega 6 Graphics", "84 CC D9"),
        ("AMD Ryzen Embedded V1202B with Radeon Vega Gfx", "85"),
        ("AMD Radeon Vega 11 Graphics", "86 C1 C6 C9 D3 D6"),
        ("AMD Radeon Vega 8 Graphics", "88 C2 C4 C8 CA D1 D5 D7"),
        ("AMD Radeon Vega 3 / 10 Graphics", "C3"),
        ("AMD Radeon Vega 3 Graphics", "C5 CB CE CF D8 E1 E2"),
        ("AMD Radeon Vega 10 Graphics", "D0"),
    ),
    0x1681: (
        ("AMD Radeon 680M", "06 0A C7 C8"),
        ("AMD Radeon 660M", "07 0B C9"),
    ),
    0x1900: (
        (
            "AMD Radeon 780M Graphics",
            "01 03 05 06 B0 B1 B2 B3 B4 B5 B6 B9 BA BB C0 C2 C4 C5 C7 C9 CB CC CE D0 D2 D4 D5 D7 D9 DB DC DE F0 F1 F2",
        ),
        ("AMD Radeon 760M Graphics", "02 04 07 B7 B8 C1 C3 C6 C8 CA CD CF D1 D3 D6 D8 DA DD DF"),
    ),
    0x67DF: (
        ("AMD Radeon Pro 580X", "C0 EB"),
        ("AMD Radeon RX 580 Series", "C1 C3 E7"),
        ("AMD Radeon RX 570 Series", "C2 C6 EF"),
        ("AMD Radeon RX 480 Graphics", "C4 C7"),
        ("AMD Radeon RX 470 Graphics", "C5 CF D7"),
        ("AMD Radeon RX 470 Series", "E0 FF"),
        ("AMD Radeon RX 590 Series", "E1"),
        ("AMD Radeon RX Series", "E3"),
        ("AMD Radeon RX P30PH", "F7"),
    ),
    0x731F: (
        ("AMD Radeon RX 5700 XT 50th Anniversary", "C0"),
        ("AMD Radeon RX 5700 XT", "C1 C5"),
        ("AMD Radeon RX 5600M", "C2"),
        ("AMD Radeon RX 5700M", "C3"),
        ("AMD Radeon RX 5700", "C4"),
        ("AMD Radeon RX 5600 XT", "CA"),
        ("AMD Radeon RX 5600 OEM", "CB"),
    ),
    0x7340: (
        ("AMD Radeon RX 5500M", "C1"),
        ("AMD Radeon RX 5300M", "C3"),
        ("AMD Radeon RX 5500 XT", "C5"),
        ("AMD Radeon RX 5500", "C7"),
        ("AMD Radeon RX 5500XTB", "C9"),
        ("AMD Radeon RX 5300", "CF"),
    ),
    0x73BF: (
        ("AMD Radeon RX 6900 XT", "C0"),
        ("AMD Radeon RX 6800 XT", "C1"),
        ("AMD Radeon RX 6800", "C3"),
    ),
    0x73DF: (
        ("AMD Radeon RX 6750 XT", "C0"),
        ("AMD Radeon RX 6700 XT", "C1 C5"),
        ("AMD Radeon RX 6800M", "C2 C3"),
        ("AMD Radeon RX 6700M", "CF"),
        ("AMD Radeon RX 6750 GRE 12GB", "D5 E5"),
        ("AMD TDC-235", "D7"),
        ("AMD Radeon RX 6700", "DF FF"),
    ),
    0x73FF: (
        ("AMD Radeon RX 6600 XT", "C1"),
        ("AMD Radeon RX 6600M", "C3"),
        ("AMD Radeon RX 6600", "C7"),
        ("AMD Radeon RX 6600S", "CB"),
        ("AMD Radeon RX 6600 LE", "CF"),
        ("AMD Radeon RX 6750 GRE 10GB", "DF"),
    ),
    0x743F: (
        ("AMD Radeon RX 6500 XT", "C1"),
        ("AMD Radeon RX 6500", "C3"),
        ("AMD Radeon RX 6500M", "C3 C8"),
        ("AMD Radeon RX 6400", "C7 D7"),
        ("AMD Radeon 6550S", "CC"),
        ("AMD Radeon RX 6450M", "CE"),
        ("AMD Radeon RX 6300M", "CF"),
        ("AMD Radeon RX 6550M", "D3"),
    ),
    0x744C: (
        ("AMD Radeon RX 7900 XTX", "C8"),
        ("AMD Radeon RX 7900 XT", "CC"),
        ("AMD Radeon RX 7900 GRE", "CE"),
        ("AMD Radeon RX 7900M", "CF"),
    ),
    0x747E: (
        ("AMD Radeon RX 7800 XT", "C8"),
        ("AMD Radeon RX 7800M", "D8"),
        ("AMD Radeon RX 7700", "DB"),
        ("AMD Radeon RX 7700 XT", "FF"),
    ),
    0x7480: (
        ("AMD Radeon Pro W7600", "00"),
        ("AMD Radeon RX 7600 XT", "C0"),
        ("AMD Radeon RX 7700S", "C1"),
        ("AMD Radeon RX 7650 GRE", "C2"),
        ("AMD Radeon RX 7600S", "C3"),
        ("AMD Radeon RX 7600M XT", "C7"),
        ("AMD Radeon RX 7600", "CF"),
    ),
    0x7550: (
        ("AMD Radeon RX 9070 XT", "C0"),
        ("AMD Radeon RX 9070 GRE", "C2"),
        ("AMD Radeon RX 9070", "C3"),
    ),
    0x7551: (
        ("AMD Radeon AI PRO R9700", "C0"),
        ("AMD Radeon AI PRO R9600D", "C8"),
        ("AMD Radeon AI PRO R9700S", "C1"),
    ),
    0x7590: (
        ("AMD Radeon RX 9060 XT", "C0"),
        ("AMD Radeon RX 9060 XT LP", "C1"),
        ("AMD Radeon RX 9060", "C7"),
    ),
}


def product_name(device_id: int | None, revision: int | None) -> str | None:
    """Return the name of a product, or None if the tables have none for these numbers.

    >>> product_name(0x74A1, 0), product_name(0x744C, 0xC8), product_name(0x744C, None)
    ('AMD Instinct MI300X', 'AMD Radeon RX 7900 XTX', None)
    """
    if device_id is None:
        return None
    wanted = "" if revision is None else f"{revision:02X}"
    names = (name for name, revisions in _BY_REVISION.get(device_id, ()) if wanted in revisions.split())
    return _BY_DEVICE.get(device_id) or next(names, None)
