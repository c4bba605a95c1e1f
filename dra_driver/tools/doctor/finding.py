"""Finding: one thing that is wrong, with its evidence and remedy; and what could not be examined.

Pure. Ids are stable and are listed in `CATALOGUE`, against which docs/doctor.md is checked. For each id there is a page
that explains more.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dra_driver.base.wire import Wire


class Severity(enum.StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"  # claims fail, or a device may be handed out twice
    WARNING = "warning"  # something is missing, or will fail later
    NOTE = "note"  # worth knowing; does not change the exit status

    @property
    def rank(self) -> int:
        """The position in the order of severity, 0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What all findings with one id have in common. `page` is relative to docs/."""

    severity: Severity
    title: str
    page: str


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

CATALOGUE: dict[str, FindingKind] = {
    "kubernetes-too-old": FindingKind(_E, "the API server or a kubelet is older than 1.34", "install.md"),
    "kubernetes-no-resource-api": FindingKind(_E, "the API server does not serve resource.k8s.io/v1", "install.md"),
    "kubernetes-unknown-version": FindingKind(
        _N, "a Kubernetes version that this driver was not tested with", "install.md"
    ),
    "kubernetes-gate-off": FindingKind(
        _N, "fields that the API server drops, so a feature is missing", "operations.md"
    ),
    "runtime-cdi-off": FindingKind(_E, "the container runtime does not use CDI files", "install.md"),
    "runtime-cdi-folder": FindingKind(_E, "the container runtime does not look into the CDI folder", "install.md"),
    "runtime-no-cdi": FindingKind(_E, "the container runtime is too old for CDI", "install.md"),
    "runtime-cdi-unknown": FindingKind(_N, "CDI is off by default in this container runtime", "install.md"),
    "driver-not-loaded": FindingKind(_E, "a GPU has no kernel driver", "troubleshooting.md"),
    "driver-nouveau": FindingKind(_E, "a GPU is bound to nouveau", "troubleshooting.md"),
    "driver-vfio": FindingKind(_N, "a GPU is reserved for virtual machines", "kubevirt.md"),
    "driver-no-headers": FindingKind(_E, "the driver can't be built for the running kernel", "troubleshooting.md"),
    "driver-version-skew": FindingKind(_E, "kernel module and library have different versions", "troubleshooting.md"),
    "driver-not-answering": FindingKind(_E, "the GPU driver does not answer", "troubleshooting.md"),
    "downgrade-claim": FindingKind(_E, "a claim that an older release could not undo", "moving.md"),
    "downgrade-health": FindingKind(_E, "faulty devices that an older release would hand out", "moving.md"),
    "driver-upgrade-held": FindingKind(_W, "claims hold devices of a node that is paused for a driver", "moving.md"),
    "driver-in-use": FindingKind(_W, "processes keep a driver that is to be replaced", "moving.md"),
    "driver-bad-version": FindingKind(_E, "a driver version with a known fault", "mig.md"),
    "driver-risky-version": FindingKind(_W, "a driver version that fails when only some GPUs use MIG", "mig.md"),
    "hardware-problem": FindingKind(_W, "a part of the hardware could not be read", "troubleshooting.md"),
    "hardware-mig-mode": FindingKind(_N, "a GPU in MIG mode without any partition", "mig.md"),
    "toolkit-missing": FindingKind(_W, "containers lack what only the container toolkit provides", "install.md"),
    "node-not-registered": FindingKind(_E, "no plugin of this driver is registered on the node", "troubleshooting.md"),
    "node-dead-socket": FindingKind(_W, "a socket on which no process listens", "troubleshooting.md"),
    "node-second-driver": FindingKind(_E, "two plugins serve the same driver name", "moving.md"),
    "node-device-plugin": FindingKind(_E, "a device plugin serves the same GPUs", "moving.md"),
    "node-ledger": FindingKind(_E, "the ledger can't be read", "troubleshooting.md"),
    "node-half-done": FindingKind(_W, "a claim is half-prepared", "troubleshooting.md"),
    "node-cdi-missing": FindingKind(_E, "a prepared claim has no CDI file", "troubleshooting.md"),
    "node-unreleased": FindingKind(_W, "a container may still use the device of an ended claim", "operations.md"),
    "node-cdi-orphan": FindingKind(_W, "a CDI file that belongs to no claim", "troubleshooting.md"),
    "node-untainted": FindingKind(_N, "a GPU node without a taint, beside nodes without GPUs", "operations.md"),
    "agent-not-ready": FindingKind(_E, "a pod of this driver is not ready", "troubleshooting.md"),
    "metrics-twice": FindingKind(_W, "two programs publish the same metrics", "telemetry.md"),
    "slices-none": FindingKind(_E, "this driver publishes nothing", "troubleshooting.md"),
    "slices-node-missing": FindingKind(_W, "a node with GPUs has no slices", "troubleshooting.md"),
    "slices-no-node": FindingKind(_W, "slices of a node that is gone", "operations.md"),
    "slices-incomplete": FindingKind(_E, "a pool is incomplete: the scheduler does not use it", "troubleshooting.md"),
    "slices-stale": FindingKind(_W, "slices of an older generation", "operations.md"),
    "fabric-no-channels": FindingKind(
        _N, "an NVLink fabric of several nodes without IMEX channels", "multi-node-nvlink.md"
    ),
    "fabric-two-channels": FindingKind(_W, "two drivers hand out a node's IMEX channel", "multi-node-nvlink.md"),
    "fabric-not-ready": FindingKind(_W, "the daemon of a node's IMEX channel is not ready", "multi-node-nvlink.md"),
    "slices-second-driver": FindingKind(_E, "another driver publishes the same GPUs", "moving.md"),
    "slices-differ": FindingKind(_E, "slices do not match the hardware", "troubleshooting.md"),
    "health-tainted": FindingKind(_W, "devices are tainted because of a fault", "health.md"),
    "health-fault": FindingKind(_W, "the agent has found a fault of a GPU", "health.md"),
    "health-cordoned": FindingKind(_N, "an administrator took a device out of use", "health.md"),
    "remediation-escalated": FindingKind(_E, "a GPU could not be repaired: a person has to look at it", "health.md"),
    "remediation-under-way": FindingKind(_W, "a GPU is drained, reset or waits for a reboot", "health.md"),
    "validation-could-not-run": FindingKind(_W, "the test of a device could not run", "health.md"),
    "health-stale": FindingKind(_W, "health is not watched any more", "health.md"),
    "class-missing": FindingKind(_E, "a class that claims refer to does not exist", "install.md"),
    "class-no-match": FindingKind(_N, "a class matches no device, and no claim asks for it", "selectors.md"),
    "class-wanted-no-match": FindingKind(_E, "a class that claims refer to matches no device", "selectors.md"),
    "class-foreign": FindingKind(_W, "a class matches devices of other drivers as well", "selectors.md"),
    "class-broken": FindingKind(_E, "a selector of a class fails", "selectors.md"),
    "tenants-class": FindingKind(_W, "a class gives others access to shares of one namespace", "security.md"),
    "tenants-no-policy": FindingKind(_E, "no policy keeps namespaces from each other's shares", "security.md"),
    "claim-not-prepared": FindingKind(_E, "allocated, but not prepared", "troubleshooting.md"),
    "claim-gone": FindingKind(_W, "prepared, but the claim is gone", "troubleshooting.md"),
    "claim-finished-pod": FindingKind(_W, "reserved by a pod that has ended or is gone", "troubleshooting.md"),
    "claim-waits": FindingKind(_N, "a pod waits for devices", "allocation.md"),
    "claim-device-gone": FindingKind(_E, "a claim holds a device that is not published", "troubleshooting.md"),
    "claim-pool-gone": FindingKind(_E, "a claim holds devices of a node that publishes nothing", "troubleshooting.md"),
    "claim-selector-aborts": FindingKind(_E, "a selector of a claim or template fails on a device", "selectors.md"),
    "pod-reference-missing": FindingKind(_E, "a pod names a claim or template that does not exist", "allocation.md"),
    "pod-resource-unserved": FindingKind(_E, "a pod waits for nvidia.com/*, which nothing serves", "allocation.md"),
    "access-old-label": FindingKind(_W, "a namespace has the old label for admin access", "operations.md"),
    "access-admin-refused": FindingKind(_W, "admin access is asked for where it is not allowed", "operations.md"),
    "access-no-policy": FindingKind(_W, "no admission policy restricts agents to their own node", "security.md"),
    "access-policy-off": FindingKind(_W, "the admission policy does not deny", "security.md"),
    "access-missing-right": FindingKind(_E, "the agent lacks a right", "security.md"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `how` explains how it is known, `remedy` what to do about it."""

    id: str
    subject: str
    message: str
    how: str
    remedy: str

    @property
    def kind(self) -> FindingKind:
        """The kind of the finding, with everything that all findings of this id share."""
        return CATALOGUE[self.id]

    @property
    def severity(self) -> Severity:
        """The severity of the finding."""
        return self.kind.severity

    def document(self) -> Wire:
        """Return the finding as a JSON document."""
        kind = self.kind
        return {**asdict(self), "severity": str(kind.severity), "title": kind.title, "page": f"docs/{kind.page}"}


@dataclass(frozen=True, slots=True)
class Unexamined:
    """Something that could not be examined, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of an examination. `looked_at` lists the areas that were examined."""

    findings: tuple[Finding, ...]
    unseen: tuple[Unexamined, ...]
    looked_at: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    def document(self) -> Wire:
        """Return the report as a JSON document."""
        return {
            "isClean": self.is_clean,
            "lookedAt": list(self.looked_at),
            "findings": [finding.document() for finding in self.findings],
            "unseen": [asdict(one) for one in self.unseen],
        }


def merge_reports(reports: Sequence[DoctorReport]) -> DoctorReport:
    """Return one report for those of several drivers; what several of them contain appears once."""
    return DoctorReport(
        worst_first(finding for report in reports for finding in report.findings),
        tuple(dict.fromkeys(one for report in reports for one in report.unseen)),
        tuple(dict.fromkeys(area for report in reports for area in report.looked_at)),
    )


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings without duplicates, the worst first."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: (one.severity.rank, one.id, one.subject)))


# Device users: the processes that have device files of the GPUs open, so that the driver can't be unloaded.

_DEVICES = ("nvidia", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/")


@dataclass(frozen=True, slots=True, order=True)
class DeviceUser:
    """A process that has a GPU's device file open; `command` is the name that the kernel has for it."""

    command: str
    pid: int

    def __str__(self) -> str:
        """Return the process as messages name it."""
        return f"{self.command} (PID {self.pid})"


def read_device_users(proc: Path, dev: Path) -> tuple[DeviceUser, ...]:
    """Return the processes that have NVIDIA's device files open, in order of name.

    Raises: PermissionError if this user is not root, and so may not look at the processes of other users.
    """
    if os.geteuid():
        raise PermissionError(f"the open files in {proc}")
    found = (_user(folder) for folder in proc.iterdir() if folder.name.isdecimal() and _has_device(folder, dev))
    return tuple(sorted(one for one in found if one is not None))


def _has_device(folder: Path, dev: Path) -> bool:
    starts = tuple(f"{dev}/{name}" for name in _DEVICES)
    return any(target.startswith(starts) for target in _targets(folder / "fd"))


def _targets(folder: Path) -> Iterator[str]:
    try:
        for entry in folder.iterdir():
            yield str(entry.readlink())
    except OSError:  # the process or the file has just gone, or is a kernel thread
        return


def _user(folder: Path) -> DeviceUser | None:
    try:
        return DeviceUser((folder / "comm").read_text(errors="replace").strip(), int(folder.name))
    except OSError:
        return None
