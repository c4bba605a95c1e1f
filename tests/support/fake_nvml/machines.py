"""GPUs and machines with the vendor's figures, as far as they are known; the rest is left out.

Figures: NVIDIA's MIG user guide, nvidia-smi listings of real machines, data sheets (2026-11). Memory clocks are those
at which the data sheets' bandwidths come out.
"""

import uuid

from tests.support.fake_nvml.state import Gpu, Profile

MIB = 2**20
GPU_LINK, SWITCH_LINK = 0, 2
HGX_H100_ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
NVL72_ADDRESSES = tuple(f"{domain}:01:00.0" for domain in ("0008", "0009", "0018", "0019"))
SWITCHES = tuple(f"0000:{bus}:00.0" for bus in ("05", "06", "07", "08"))

H100_PROFILES = (
    Profile(0, 19, 1, 7, 16, 1, 1, 1, 0, 9984, "1g.10gb", size=1),
    Profile(7, 20, 1, 1, 16, 1, 1, 1, 1, 9984, "1g.10gb+me", size=1),
    Profile(9, 15, 1, 4, 26, 1, 1, 1, 0, 20096, "1g.20gb", size=2),
    Profile(1, 14, 2, 3, 32, 2, 2, 2, 0, 20096, "2g.20gb", size=2),
    Profile(2, 9, 3, 2, 60, 3, 3, 3, 0, 40448, "3g.40gb", size=4),
    Profile(3, 5, 4, 1, 64, 4, 4, 4, 0, 40448, "4g.40gb", size=4),
    Profile(4, 0, 7, 1, 132, 8, 7, 7, 1, 81152, "7g.80gb", size=8),
)
A100_40_PROFILES = (
    Profile(0, 19, 1, 7, 14, 1, 0, 0, 0, 4864, "1g.5gb", size=1),
    Profile(7, 20, 1, 1, 14, 1, 1, 1, 1, 4864, "1g.5gb+me", size=1),
    Profile(9, 15, 1, 4, 14, 1, 1, 0, 0, 9984, "1g.10gb", size=2),
    Profile(1, 14, 2, 3, 28, 2, 1, 0, 0, 9984, "2g.10gb", size=2),
    Profile(2, 9, 3, 2, 42, 3, 2, 0, 0, 20096, "3g.20gb", size=4),
    Profile(3, 5, 4, 1, 56, 4, 2, 0, 0, 20096, "4g.20gb", size=4),
    Profile(4, 0, 7, 1, 98, 7, 5, 1, 1, 40448, "7g.40gb", size=8),
)
GB200_PROFILES = (
    Profile(0, 19, 1, 7, 18, 2, 1, 1, 0, 22528, "1g.23gb", size=1),
    Profile(7, 20, 1, 1, 18, 2, 1, 1, 1, 22528, "1g.23gb+me", size=1),
    Profile(9, 15, 1, 4, 32, 2, 1, 1, 0, 46592, "1g.47gb", size=2),
    Profile(1, 14, 2, 3, 38, 4, 2, 2, 0, 46592, "2g.47gb", size=2),
)


def gpu_uuid(pci: str) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, pci)}"


def _gpu(pci: str, minor: int, name: str, memory_mib: int, **facts: object) -> Gpu:
    return Gpu(
        pci,
        {
            "uuid": gpu_uuid(pci),
            "minor": minor,
            "index": minor,
            "name": name,
            "memory_bytes": memory_mib * MIB,
            "brand": 14,
            "serial": f"16500200{minor:05d}",
            "vbios_version": "96.00.74.00.01",
            "addressing_mode": 0,
            **facts,
        },
    )


def h100(pci: str, minor: int) -> Gpu:
    gpu = _gpu(
        pci,
        minor,
        "NVIDIA H100 80GB HBM3",
        81559,
        architecture=9,
        compute_capability="9 0",
        ecc_mode="1 1",
        power_limits_mw="200000 700000",
        sm_clock_max_mhz=1980,
        memory_clock_max_mhz=2619,
        memory_bus_bits=5120,
        mig_mode="0 0",
        mig_max=7,
        pci_device_id="0x233010DE",
    )
    gpu.profiles = list(H100_PROFILES)
    return gpu


def a100_40(pci: str, minor: int) -> Gpu:
    gpu = _gpu(
        pci,
        minor,
        "NVIDIA A100-SXM4-40GB",
        40960,
        architecture=7,
        compute_capability="8 0",
        ecc_mode="1 1",
        power_limits_mw="100000 400000",
        sm_clock_max_mhz=1410,
        memory_clock_max_mhz=1215,
        memory_bus_bits=5120,
        mig_mode="0 0",
        mig_max=7,
        pci_device_id="0x20B010DE",
    )
    gpu.profiles = list(A100_40_PROFILES)
    return gpu


def gb200(pci: str, minor: int) -> Gpu:
    gpu = _gpu(
        pci,
        minor,
        "NVIDIA GB200",
        189471,
        architecture=10,
        compute_capability="10 0",
        ecc_mode="1 1",
        power_limits_mw="200000 1200000",
        sm_clock_max_mhz=2062,
        addressing_mode=2,
        mig_mode="0 0",
        mig_max=7,
        pci_device_id="0x294110DE",
    )
    gpu.profiles = list(GB200_PROFILES)
    return gpu


def l40s(pci: str, minor: int) -> Gpu:
    return _gpu(
        pci,
        minor,
        "NVIDIA L40S",
        46068,
        architecture=8,
        compute_capability="8 9",
        ecc_mode="1 1",
        power_limits_mw="100000 350000",
        sm_clock_max_mhz=2520,
        memory_clock_max_mhz=9001,
        memory_bus_bits=384,
        pci_device_id="0x26B910DE",
    )


def t4(pci: str, minor: int) -> Gpu:
    gpu = _gpu(
        pci,
        minor,
        "Tesla T4",
        15360,
        architecture=6,
        compute_capability="7 5",
        ecc_mode="1 1",
        power_limits_mw="60000 70000",
        sm_clock_max_mhz=1590,
        memory_clock_max_mhz=5001,
        memory_bus_bits=256,
        pci_device_id="0x1EB810DE",
    )
    del gpu.facts["addressing_mode"]
    gpu.facts["brand"] = 2
    return gpu


def hgx_h100(count: int = 8) -> list[Gpu]:
    """Return H100 behind four NVSwitches, with 18 links each; the fabric of a single machine has no name."""
    gpus = [h100(pci, minor) for minor, pci in enumerate(HGX_H100_ADDRESSES[:count])]
    for gpu in gpus:
        gpu.links = [(1, SWITCH_LINK, SWITCHES[link % len(SWITCHES)]) for link in range(18)]
        gpu.facts["fabric"] = f"3 0 {'0' * 32} 0"
    return gpus


def nvl72_tray(cluster: uuid.UUID, clique: int = 32766) -> list[Gpu]:
    """Return four GB200 of a rack whose switches are in other trays."""
    gpus = [gb200(pci, minor) for minor, pci in enumerate(NVL72_ADDRESSES)]
    for gpu in gpus:
        gpu.links = [(1, SWITCH_LINK, "ffffffff:ff:1f.0")] * 18
        gpu.facts["fabric"] = f"3 0 {cluster.hex} {clique}"
    return gpus
