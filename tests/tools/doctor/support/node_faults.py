"""Evidence of nodes with one fault each, by the id of the finding that it must give."""

from __future__ import annotations

from dataclasses import replace

from dra_driver.hardware.facts import Facts, Problem, mixed_mig_problems
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.health.cases import RemediationAction, RemediationCase, Stage
from dra_driver.node.health.faults import Fault, FaultKey, Subject
from dra_driver.node.health.validation_results import UntestedDevice
from dra_driver.node.kubelet.registration import RegisteredPlugin
from dra_driver.node.ledger.unreleased import UnreleasedClaim
from dra_driver.tools.doctor.evidence import NodeFaults, RuntimeConfig
from dra_driver.tools.doctor.finding import DeviceUser
from dra_driver.tools.doctor.node_evidence import PluginSocket
from tests.tools.doctor.support import evidence as e

FOREIGN = RegisteredPlugin("DRAPlugin", e.DRIVER, "/elsewhere/dra.sock", is_marked=False)

FAULT = Fault(FaultKey.NEEDS_RESET, Subject("0000:01:00.0"), "gpu-reset", since=0.0, last_seen=9.0)


def treated(stage):
    key, action = FaultKey.NEEDS_RESET, RemediationAction.RESET
    return RemediationCase("0000:09:00.0", "GPU-a", key, "gpu-reset", 0.0, 0.0, stage, 0.0, action, tries=2)


MIXED_GPUS = (replace(e.GPUS[0], mig_enabled=True), e.GPUS[1])

MIXED = Facts(
    vendor="nvidia",
    gpus=MIXED_GPUS,
    driver_version="570.133.20",
    problems=mixed_mig_problems(MIXED_GPUS, "570.133.20"),
)

LOST = Facts(
    vendor="nvidia", gpus=e.GPUS, driver_version="580.95.5", problems=(Problem("hardware.gpu-lost", "x", "gone"),)
)

UNTESTED = UntestedDevice("gpu-0000-09-00-0", "580.95.5", "not-ready", "the fabric is not ready", 3, 0.0)

NODES = {
    "health-fault": {"health": NodeFaults(faults=(FAULT,))},
    "remediation-escalated": {"health": NodeFaults(remediations=(treated(Stage.ESCALATED),))},
    "remediation-under-way": {"health": NodeFaults(remediations=(treated(Stage.DRAIN_ASKED),))},
    "validation-could-not-run": {"health": NodeFaults(untested=(UNTESTED,))},
    "health-stale": {"health": NodeFaults(silent_s=200.0)},
    "driver-not-loaded": {"kernel": replace(e.node().kernel, bound={"0000:09:00.0": None}, has_headers=True)},
    "driver-nouveau": {"kernel": replace(e.node().kernel, bound={"0000:01:00.0": "nouveau"})},
    "driver-vfio": {"kernel": replace(e.node().kernel, bound={"0000:01:00.0": "vfio-pci"})},
    "driver-version-skew": {"kernel": replace(e.node().kernel, library_version="580.65.06")},
    "driver-in-use": {
        "kernel": replace(e.node().kernel, library_version="580.65.06"),
        "users": (DeviceUser("nv-hostengine", 77),),
    },
    "driver-bad-version": {"facts": MIXED, "inventory": build_inventory(MIXED)},
    "driver-risky-version": {"facts": replace(e.FACTS, driver_version="570.133.20")},
    "driver-not-answering": {"inventory": replace(build_inventory(e.FACTS), waiting_for="the driver")},
    "hardware-problem": {"facts": LOST, "inventory": build_inventory(LOST)},
    "toolkit-missing": {"left_out": ("no hook program",)},
    "runtime-cdi-off": {"runtimes": (RuntimeConfig("containerd", "/f", False, ("/run/cdi",)),)},
    "runtime-cdi-unknown": {"runtimes": (RuntimeConfig("containerd", "/f", None, ("/run/cdi",)),)},
    "runtime-cdi-folder": {"runtimes": (RuntimeConfig("CRI-O", "/f", True, ("/etc/cdi",)),)},
    "node-not-registered": {"sockets": ()},
    "node-dead-socket": {"sockets": (*(e.node().sockets or ()), PluginSocket("/k/x.sock", is_dead=True))},
    "node-second-driver": {"sockets": (*(e.node().sockets or ()), PluginSocket("/k/x.sock", FOREIGN))},
    "node-device-plugin": {"device_plugins": ("/k/device-plugins/nvidia.sock",)},
    "node-ledger": {"rows": None, "ledger_fault": "ledger.db: not a database"},
    "node-half-done": {"rows": tuple(replace(one, state="preparing") for one in e.node().rows or ())},
    "node-cdi-missing": {"cdi_uids": frozenset()},
    "node-unreleased": {"unreleased": (UnreleasedClaim("uid-o", "team", "old", ("gpu-1",), ("p",), 0.0, ""),)},
    "node-cdi-orphan": {"cdi_uids": frozenset({"uid-c", "uid-d"})},
}  # fmt: skip
