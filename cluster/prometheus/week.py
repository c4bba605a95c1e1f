"""A week of a small fleet, as samples in OpenMetrics' text: whole GPUs, partitions, shares, and unclaimed GPUs.

Node gpu-a has eight whole GPUs of which four are claimed, gpu-b a GPU with two partitions, gpu-c one with two shares;
gpu-d has two of AMD's GPUs, gpu-e one of Intel's.
Every metric that is asked for has series with the labels that its family has on a real page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MODEL = "NVIDIA H100 80GB HBM3"
STEP_S = 120
WEEK_S = 7 * 86400
Labels = dict[str, str]

_CLAIMS = tuple(
    {"namespace": space, "pod": f"{name}-0", "dra_claim_name": name, "dra_claim_namespace": space,
     "dra_claim_uid": f"uid-{name}"}
    for space, name in (("train", "llm-0"), ("train", "llm-1"), ("train", "llm-2"), ("web", "idle"), ("web", "part-0"),
                        ("web", "part-1"), ("lab", "share-0"), ("lab", "share-1"))
)  # fmt: skip
_PROFILES = ("gpu", "gpu", "gpu", "gpu", "3g.40gb", "3g.40gb", "gpu-share", "gpu-share")


def _device(node: str, gpu: int) -> Labels:
    uuid = f"GPU-{node}-{gpu}"
    return {"gpu": str(gpu), "UUID": uuid, "pci_bus_id": f"00000000:0{gpu}:00.0", "device": f"nvidia{gpu}",
            "modelName": MODEL, "Hostname": node, "instance": f"{node}:9400", "node": node}  # fmt: skip


def _devices() -> Iterator[Labels]:
    for gpu in range(8):
        yield _device("gpu-a", gpu) | (_CLAIMS[gpu] if gpu < 4 else {})
    for number in (0, 1):
        yield _device("gpu-b", 0) | {"GPU_I_ID": str(number + 1), "GPU_I_PROFILE": "3g.40gb"} | _CLAIMS[4 + number]
    yield _device("gpu-b", 0)
    for number in (0, 1):
        yield _device("gpu-c", 0) | _CLAIMS[6 + number] | {"dra_share_id": f"s{number}"}


def _agent(**more: str) -> list[Labels]:
    return [{"instance": f"{node}:9400", "node": node, **more} for node in ("gpu-a", "gpu-b", "gpu-c")]


def _kind(index: int) -> Labels:
    return {"device_class": "gpu.nvidia.com", "model": MODEL, "profile": _PROFILES[index]}


def series_of(name: str) -> list[Labels]:
    """Return the labels of the series that a metric has."""
    if name.startswith("DCGM_") or name in {"dra_telemetry_age_seconds", "dra_claim_device_info"}:
        others = [*_of_other_vendors("gpu_"), *_of_other_vendors("xpum_")] if name == "dra_claim_device_info" else []
        return [one for one in (*_devices(), *others) if name != "dra_claim_device_info" or "dra_claim_uid" in one]
    if name.startswith(("gpu_", "pcie_", "xpum_")):
        return _of_other_vendors(name)
    if name == "dra_gpu_xids_total":
        return [_device("gpu-a", 0) | {"xid": "79"}]
    if name.startswith("dra_claim_sm_active"):
        bounds = ("0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "1.0", "+Inf") if name.endswith("_bucket") else ("",)
        return [claim | ({"le": bound} if bound else {}) for claim in _CLAIMS for bound in bounds]
    if name.startswith("dra_claim_"):
        return [claim | _kind(index) for index, claim in enumerate(_CLAIMS)]
    if name in {"dra_allocated_seconds_total", "dra_busy_seconds_total", "dra_measured_seconds_total"}:
        kinds = {(claim["namespace"], _PROFILES[index]): index for index, claim in enumerate(_CLAIMS)}
        return [{"namespace": space, **_kind(index)} for (space, _), index in kinds.items()]
    if name == "dra_unclaimed_seconds_total":
        return [{"dra_pool_name": f"{one['node']}/gpu.nvidia.com", "model": MODEL, **one} for one in _agent()]
    if name == "dra_gpu_part":
        return [{"model": MODEL, "profile": profile, **_agent()[0]} for profile in dict.fromkeys(_PROFILES)]
    return _of_an_agent(name)


def _of_other_vendors(name: str) -> list[Labels]:
    """Return the series of a node with two of AMD's GPUs, or with one of Intel's; a claim has the first of each."""
    if name.startswith("xpum_"):
        return [{"dev_id": "0", "pci_bdf": "0000:03:00.0", "instance": "gpu-e:9400", "node": "gpu-e", **_CLAIMS[1]}]
    clocks = ("SYSTEM", "MEMORY") if name == "gpu_clock" else ("",)
    return [
        {"gpu_id": str(gpu), "hostname": "gpu-d", "instance": "gpu-d:9400", "node": "gpu-d"}
        | ({"clock_type": f"GPU_CLOCK_TYPE_{clock}"} if clock else {})
        | (_CLAIMS[0] if gpu == 0 else {})
        for gpu in (0, 1)
        for clock in clocks
    ]


def _of_an_agent(name: str) -> list[Labels]:
    more = {
        "dra_driver_faults": [{"key": "xid"}, {"key": "gpu-lost"}, {"key": "needs-reset"}],
        "dra_driver_xids_total": [{"code": "79", "class": "reboot"}, {"code": "31", "class": "application"}],
        "dra_driver_claims_total": [{"rpc": "prepare", "code": code} for code in ("ok", "claim.device-in-use")],
        "dra_driver_problems": [{"code": "node.folder"}],
        "dra_driver_devices": [{"type": "gpu"}, {"type": "mig"}],
        "dra_driver_evictions_held_back": [{"reason": "node"}],
    }.get(name, [{}])
    return [one for labels in more for one in _agent(**labels)]


def _value(name: str, labels: Labels, second: int) -> float:
    if name == "dra_gpu_part":
        return 0.5 if labels["profile"] == "3g.40gb" else 1.0
    if name.endswith(("_total", "_bucket", "_sum", "_count", "_COUNTER", "_CONSUMPTION", "_BANDWIDTH_TOTAL")):
        return second * (0.5 if "busy" in name else 1.0)
    if name.startswith("DCGM_FI_PROF"):
        return 0.5
    return 0.0 if name == "dra_driver_registered" and labels["node"] == "gpu-c" else 40.0


def text(names: Iterable[str], began: int) -> Iterator[str]:
    """Yield the samples of a week, name by name and series by series, in the format of promtool."""
    for name in sorted(names):
        yield f"# TYPE {name} unknown\n"
        for labels in series_of(name):
            pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
            for second in range(0, WEEK_S + 1, STEP_S):
                yield f"{name}{{{pairs}}} {_value(name, labels, second)} {began + second}\n"
    yield "# EOF\n"
