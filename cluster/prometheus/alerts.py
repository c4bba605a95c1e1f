"""For each alert: samples over time, when it fires, and when it does not.

A line is samples one a minute, in promtool's notation (`0x9` is ten zeros, `0+6x9` grows by six). Times are minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

NODE = 'instance="gpu-a:9400",node="gpu-a"'
GPU = 'gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-a",instance="gpu-a:9400"'
CLAIM = 'namespace="team",dra_claim_name="train",dra_claim_namespace="team",dra_claim_uid="u"'
KIND = 'device_class="gpu.nvidia.com",model="NVIDIA H100 80GB HBM3",profile="gpu",dra_pool_name="gpu-a/gpu.nvidia.com"'


@dataclass(frozen=True)
class AlertCase:
    """Samples for one alert, with the minutes at which it fires and those at which it does not.

    The last quiet minute is after the end of the fault.
    """

    alert: str
    series: dict[str, str]
    fires: tuple[int, ...]
    quiet: tuple[int, ...]
    labels: dict[str, str] = field(default_factory=dict)  # of the alert that fires, as far as they are checked


def _fault(alert: str, key: str, after: int) -> AlertCase:
    """Return a case of a fault that lasts for twice as long as it takes to raise the alert."""
    values = f"0x4 1x{2 * after} 0x30"
    series = {f'dra_driver_faults{{key="{key}",{NODE}}}': values, f'dra_driver_faults{{key="pcie",{NODE}}}': "1x5000"}
    begins = 5
    return AlertCase(
        alert, series, (begins + after + 1,), (0, begins + max(0, after - 1), begins + 2 * after + 5), {"key": key}
    )


def cases() -> Iterator[AlertCase]:
    """Yield every case."""
    yield _fault("GpuLost", "gpu-lost", 1)
    for key in ("needs-reset", "needs-reboot", "needs-attention"):
        yield _fault("GpuRecoveryActionPending", key, 10)
    for key in ("xid", "ecc-uncorrectable", "ecc-threshold", "not-answering"):
        yield _fault("GpuTainted", key, 1)
    yield _fault("GpuRowRemapFailed", "row-remap-failed", 5)
    yield AlertCase("GpuRowRemapFailed", {f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{GPU}}}": "0x4 1x20 0x20"}, (12,), (4, 40))
    yield _fault("GpuRowRemapPendingLong", "row-remap-pending", 1440)
    yield _fault("GpuNvlinkDown", "nvlink", 2)
    yield _fault("GpuFabricUnhealthy", "fabric", 2)
    yield _fault("GpuThermalMargin", "thermal", 5)
    yield _fault("GpuThrottled", "throttled", 10)
    yield _fault("GpuCordonedLong", "cordoned", 1440)
    yield _fault("GpuValidationFailed", "unvalidated", 10)
    stuck = {f'dra_driver_remediations{{stage="drain-asked",{NODE}}}': "0x4 1x720 0x30"}
    yield AlertCase("GpuRemediationStuck", stuck, (370,), (4, 300, 740), {"stage": "drain-asked"})
    escalated = {f'dra_driver_remediations{{stage="escalated",{NODE}}}': "0x4 1x20 0x30"}
    yield AlertCase("GpuRemediationEscalated", escalated, (15,), (4, 8, 40))
    yield _fault("GpuHealthMonitorStale", "unmonitored", 2)
    ages = {f"dra_telemetry_age_seconds{{{GPU}}}": "5x9 60+60x9 5x20"}
    yield AlertCase("GpuHealthMonitorStale", ages, (16,), (9, 11, 30))
    yield from _xids()
    held = {f'dra_driver_evictions_held_back{{reason="budget",{NODE}}}': "0x4 2x10 0x10"}
    yield AlertCase("GpuEvictionsHeldBack", held, (8,), (4, 20), {"reason": "budget"})
    yield from _of_the_agent()
    yield from _waste()
    yield from _classic()


def _xids() -> Iterator[AlertCase]:
    def xids(code: str, kind: str) -> str:
        return f'dra_driver_xids_total{{code="{code}",class="{kind}",{NODE}}}'

    # The first Xid of a code creates the series: no value has increased, but an Xid was reported.
    first = {xids("79", "reboot"): "_x9 1x40", xids("31", "application"): "0+1x50"}
    yield AlertCase("GpuXid", first, (11, 18), (5, 25), {"code": "79", "class": "reboot"})
    again = {xids("119", "reset"): "1x20 2x40"}
    yield AlertCase("GpuXid", again, (22, 28), (15, 40), {"code": "119"})
    many = {xids("31", "application"): "0x9 0+1x20 20x90", xids("13", "application"): "0x9 0+0.1x20 2x90"}
    yield AlertCase("GpuXidApplication", many, (30,), (9, 15, 110), {"code": "31"})


def _of_the_agent() -> Iterator[AlertCase]:
    registered = {f"dra_driver_registered{{{NODE}}}": "1x4 0x15 1x10"}
    yield AlertCase("DraAgentUnregistered", registered, (18,), (4, 12, 25))
    problem = {f'dra_driver_problems{{code="node.folder",{NODE}}}': "0x4 1x20 0x10"}
    yield AlertCase("DraAgentProblem", problem, (22,), (4, 15, 32), {"code": "node.folder"})
    claims = 'dra_driver_claims_total{rpc="prepare",'
    failing = {
        f'{claims}code="claim.device-in-use",{NODE}}}': "0x9 0+2x20 40x40",
        f'{claims}code="ok",{NODE}}}': "0+9x80",
    }
    yield AlertCase("DraClaimsFail", failing, (25,), (9, 60), {"code": "claim.device-in-use"})
    ours = f'DCGM_FI_DEV_GPU_TEMP{{{GPU},job="dra-driver"}}'
    theirs = f'DCGM_FI_DEV_GPU_TEMP{{{GPU},job="dcgm-exporter",pod="x"}}'
    parts = {f'DCGM_FI_DEV_GPU_TEMP{{{GPU},job="dra-driver",GPU_I_ID="{number}"}}': "40x60" for number in (1, 2)}
    yield AlertCase("GpuScrapeSourceDouble", {ours: "40x60", theirs: "_x9 40x20 stale", **parts}, (25,), (9, 15, 40))


def _waste() -> Iterator[AlertCase]:
    def hours(name: str, uid: str = "u") -> str:
        claim = CLAIM.replace('uid="u"', f'uid="{uid}"')
        return f"dra_claim_{name}_seconds_total{{{claim},{KIND}}}"

    idle = {
        hours("busy"): "0+54x29 1566x120 1566+54x60", hours("measured"): "0+60x240",
        hours("busy", "works"): "0+30x240", hours("measured", "works"): "0+60x240",
        hours("allocated", "unmeasured"): "0+60x240",
    }  # fmt: skip
    yield AlertCase("GpuClaimIdle", idle, (110, 140), (30, 60, 90, 200), {"dra_claim_uid": "u"})
    ended = {hours("busy"): "0x120 stale", hours("measured"): "0+60x120 stale"}
    yield AlertCase("GpuClaimIdle", ended, (90,), (50, 150), {"dra_claim_uid": "u"})
    pool = 'dra_pool_name="gpu-a/gpu.nvidia.com",model="NVIDIA H100 80GB HBM3",node="gpu-a"'
    unclaimed = {f"dra_unclaimed_seconds_total{{{pool}}}": "0+480x60 28800x60"}
    yield AlertCase("GpuUnclaimed", unclaimed, (45,), (20, 100), {"dra_pool_name": "gpu-a/gpu.nvidia.com"})
    half = {f"dra_unclaimed_seconds_total{{{pool}}}": "0+30x120"}
    yield AlertCase("GpuUnclaimed", half, (), (45, 100))
    device = f"{GPU},{CLAIM}"

    def used(memory: str, active: str) -> dict[str, str]:
        return {
            f"DCGM_FI_DEV_FB_USED{{{device}}}": memory, f"DCGM_FI_DEV_FB_FREE{{{device}}}": "60000x1800",
            f"DCGM_FI_PROF_SM_ACTIVE{{{device}}}": active,
        }  # fmt: skip

    yield AlertCase("GpuOversized", used("10000x1600 70000x200", "0.1x1800"), (1510, 1590), (60, 1400, 1700))
    yield AlertCase("GpuOversized", used("10000x1800", "0.9x1800"), (), (1510,))


def _classic() -> Iterator[AlertCase]:
    yield AlertCase("GpuTemperatureHigh", {f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}}": "85x4 86x10 80x10"}, (12,), (4, 8, 20))
    memory = {f"DCGM_FI_DEV_FB_USED{{{GPU}}}": "900x4 980x20 900x10", f"DCGM_FI_DEV_FB_FREE{{{GPU}}}": "50x40"}
    yield AlertCase("GpuMemoryNearlyFull", memory, (), (4, 10, 30))
    full = {
        f"DCGM_FI_DEV_FB_USED{{{GPU}}}": "900x4 980x20 900x10",
        f"DCGM_FI_DEV_FB_FREE{{{GPU}}}": "100x4 20x20 100x10",
    }
    yield AlertCase("GpuMemoryNearlyFull", full, (17,), (4, 10, 30))
    yield AlertCase("GpuXidError", {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "0x4 79x10 0x10"}, (8,), (4, 20))
    yield AlertCase("GpuUtilizationLow", {f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": "10x4 9x40 50x10"}, (40,), (4, 30, 50))
