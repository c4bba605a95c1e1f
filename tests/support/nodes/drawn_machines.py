"""Machines of AMD and Intel as far as their drivers' code reads them, drawn by us after what real machines have.

Their names are those of the captures, which lie beside the repository (DRA_SHARED says where): a test runs on the
drawing everywhere, and on the capture where there is one. Numbers that tests name are those of the real parts; other
numbers are made up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dra_driver.hardware.port import Roots

CAPTURES = Path(os.environ.get("DRA_SHARED", Path(__file__).parents[4] / "shared")) / "captures"
FORMS = ("drawn", "captured") if CAPTURES.is_dir() else ("drawn",)

_KFD = "class/kfd/kfd/topology/nodes"
Files = dict[str, str]  # text by the path below /sys; a path that ends in / is an empty folder


def _function(card: str, address: str, vendor: int, part: int, driver: str, **files: str) -> Files:
    """Return the PCI function of a display device."""
    values = {
        "uevent": f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_ID={vendor:04X}:{part:04X}\nPCI_SLOT_NAME={address}",
        "vendor": f"0x{vendor:04x}",
        **files,
    }
    return {f"class/drm/{card}/device/{name}": f"{text}\n" for name, text in values.items()}


def _radeon(card: str, address: str, part: int, **files: str) -> Files:
    return _function(card, address, 0x1002, part, "amdgpu", **files)


def _node(number: int, bank: int | None = None, **values: int) -> Files:
    """Return a node of AMD's topology: a processor without values, otherwise a GPU, with a bank of memory."""
    known = {"cpu_cores_count": 0 if values else 64, "simd_count": 0, "vendor_id": 4098 if values else 0, **values}
    lines = "".join(f"{name} {value}\n" for name, value in known.items())
    found = {f"{_KFD}/{number}/properties": lines}
    if bank is not None:
        found[f"{_KFD}/{number}/mem_banks/0/properties"] = f"heap_type 1\nsize_in_bytes {bank}\nflags 0\n"
    return found


def _apu(bus: int, device: int, revision: str, target: int, shared: int) -> Files:
    """Return a laptop whose GPU has 12 compute units in the processor, and takes memory of the machine."""
    memory = {"mem_info_vram_total": str(512 << 20), "mem_info_gtt_total": str(shared)}
    facts = {"device": f"0x{device:04x}", "revision": revision, "numa_node": "-1", "unique_id": ""}
    values = {"simd_count": 24, "simd_per_cu": 2, "gfx_target_version": target, "device_id": device}
    return {
        **_radeon("card1", f"0000:{bus:02x}:00.0", device, **facts, **memory),
        **_node(0),
        **_node(1, shared, **values, location_id=bus << 8, domain=0, drm_render_minor=128, hive_id=0, unique_id=0),
    }


def _card(address: str, device: int, revision: str, memory: int, **files: str) -> Files:
    """Return a graphics card of a machine without compute driver and render nodes."""
    facts = {"revision": revision, "numa_node": "-1", "product_name": "", "device": f"0x{device:04x}"}
    sizes = {"mem_info_vram_total": str(memory), "mem_info_gtt_total": str(8 << 30)}
    return _radeon("card0", address, device, **facts, **sizes, **files)


def _doubled_mi25() -> Files:
    """Return a topology that lists one card twice, under two render nodes."""
    values = {"simd_count": 256, "simd_per_cu": 4, "device_id": 0x6860, "location_id": 0x19 << 8}
    nodes = [_node(1 + n, 17163091968, **values, drm_render_minor=128 + n, unique_id=77 + n) for n in range(2)]
    return {**_node(0), **nodes[0], **nodes[1]}


def _mi210() -> Files:
    """Return the topology of eight cards, four and four of them linked to each other."""
    found = {**_node(0), **_node(1)}
    values = {"simd_count": 416, "simd_per_cu": 4, "gfx_target_version": 90010, "device_id": 0x740F, "domain": 0}
    for index in range(8):
        place = {"location_id": (0x13 + 0x10 * index) << 8, "drm_render_minor": 128 + index}
        found |= _node(2 + index, **values, **place, hive_id=1000 + index // 4, unique_id=2000 + index)
    return found


def _mi300x_in_eight_parts() -> Files:
    """Return the topology of eight GPUs in eight parts each, the last of which has no node of its own."""
    found = {**_node(0), **_node(1)}
    values = {"simd_count": 152, "simd_per_cu": 4, "gfx_target_version": 90402, "device_id": 0x74A1, "domain": 0}
    for number in range(63):
        gpu, part = divmod(number, 8)
        place = {"location_id": (0x15 + 0x10 * gpu) << 8 | part, "drm_render_minor": 128 + number}
        found |= _node(2 + number, **values, **place, hive_id=1000, unique_id=2000 + gpu, num_xcc=1)
    return found


def _mi300a_undivided() -> Files:
    """Return four undivided APUs, each with the seven render nodes that its driver makes for parts."""
    found: Files = {}
    values = {"simd_count": 912, "simd_per_cu": 4, "gfx_target_version": 90402, "device_id": 0x74A0}
    for number in range(4):
        first = 8 * number
        place = {"location_id": 0x200, "domain": number, "drm_render_minor": 128 + first}
        found |= _node(number) | _node(4 + number, **values, **place, hive_id=1000, unique_id=2000 + number, num_xcc=6)
        drm = f"module/amdgpu/drivers/pci:amdgpu/000{number}:02:00.0/drm"
        found |= {f"{drm}/card{first}/": "", f"{drm}/renderD{128 + first}/": ""}
        for part in range(1, 8):
            drm = f"devices/platform/amdgpu_xcp.{7 * number + part - 1}/drm"
            found |= {f"{drm}/card{first + part}/": "", f"{drm}/renderD{128 + first + part}/": ""}
    return found


def _intel(address: str, part: int, driver: str, **files: str) -> Files:
    return _function("card1", address, 0x8086, part, driver, **files)


_ENGINE = {"class/drm/card1/device/xe.mei-gscfi.2304/mei/mei0/": ""}
_XE = {"device": "0xe20b", "numa_node": "-1"}
_GIB_8 = 8573157376
_MACHINES: dict[str, Callable[[], Files]] = {
    "radeon-phoenix": lambda: _apu(0x64, 0x15BF, "0xdd", 110003, 31433977856),
    "radeon-strixpoint": lambda: _apu(0xC1, 0x150E, "0xc4", 110500, 16441004032),
    "radeon-procfs-card0": lambda: _card("0000:09:00.0", 0x687F, "0xc1", _GIB_8, unique_id="00c0ffee00c0ffee"),
    "radeon-vega56": lambda: _card("0000:0b:00.0", 0x687F, "0xc3", _GIB_8),
    "radeon-rx580": lambda: _card("0000:09:00.0", 0x67DF, "0xe7", 4 << 30),
    "radeon-rx6900xt": lambda: _card("0000:0c:00.0", 0x73BF, "0xc0", 17163091968, unique_id="00c0ffee00c0ffef"),
    "radeon-rx7900xtx": lambda: _radeon("card0", "0000:03:00.0", 0x744C),
    "vega10-1gpu-doubled": _doubled_mi25,
    "mi210-8gpu-2hives": _mi210,
    "mi300x-cpx-nps1-8gpu": _mi300x_in_eight_parts,
    "mi300a-spx-4gpu-xcp": _mi300a_undivided,
    "gpu-a380-i915": lambda: _intel("0000:0b:00.0", 0x56A5, "i915"),
    "gpu-b580": lambda: _intel("0000:09:00.0", 0xE20B, "xe", **_XE) | _ENGINE,
    "gpu-b580-6.16": lambda: _intel("0000:0b:00.0", 0xE20B, "xe", **_XE) | _ENGINE,
}


def machine(name: str, form: str, vendor: str, folder: Path) -> Roots:
    """Return the roots of a machine: its capture, or a drawing of it below `folder`."""
    if form == "captured":
        return Roots(sys=str(CAPTURES / vendor / name / "sys"), dev="/nonexistent")
    for path, text in _MACHINES[name]().items():
        place = folder / name / "sys" / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_text(text)
    return Roots(sys=str(folder / name / "sys"), dev="/nonexistent")
