"""Finding: one thing that is wrong, with its evidence and remedy; and what could not be seen.

Pure. Ids are stable, and stand in `CATALOGUE`, from which docs/doctor.md is checked. A page tells more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dra_driver.model.wire import Wire


class Severity(enum.StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"  # claims fail, or a device may be handed out twice
    WARNING = "warning"  # something is missing, or will go wrong
    NOTE = "note"  # good to know; does not change the exit status

    @property
    def rank(self) -> int:
        """Give 0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Kind:
    """What all findings of one id share. `page` is relative to docs/."""

    severity: Severity
    title: str
    page: str


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

CATALOGUE: dict[str, Kind] = {
    "kubernetes-too-old": Kind(_E, "the API server or a kubelet is older than 1.34", "install.md"),
    "kubernetes-no-resource-api": Kind(_E, "the API server does not serve resource.k8s.io/v1", "install.md"),
    "kubernetes-unknown-version": Kind(_N, "a Kubernetes version that this driver was not tested with", "install.md"),
    "kubernetes-gate-off": Kind(_N, "fields that the API server drops, so that a feature is missing", "operations.md"),
    "runtime-cdi-off": Kind(_E, "the container runtime does not use CDI files", "install.md"),
    "runtime-cdi-folder": Kind(_E, "the container runtime does not look into the CDI folder", "install.md"),
    "runtime-no-cdi": Kind(_E, "the container runtime is too old for CDI", "install.md"),
    "runtime-cdi-unknown": Kind(_N, "CDI is off by default in this container runtime", "install.md"),
    "driver-not-loaded": Kind(_E, "a GPU has no kernel driver", "troubleshooting.md"),
    "driver-nouveau": Kind(_E, "a GPU is bound to nouveau", "troubleshooting.md"),
    "driver-vfio": Kind(_N, "a GPU is given to virtual machines", "troubleshooting.md"),
    "driver-no-headers": Kind(_E, "the driver can't be built for the running kernel", "troubleshooting.md"),
    "driver-version-skew": Kind(_E, "kernel module and library are of different versions", "troubleshooting.md"),
    "driver-not-answering": Kind(_E, "the GPU driver does not answer", "troubleshooting.md"),
    "driver-bad-version": Kind(_E, "a driver version with a known fault", "mig.md"),
    "driver-risky-version": Kind(_W, "a driver version with a fault that mixed MIG brings out", "mig.md"),
    "hardware-problem": Kind(_W, "something of the hardware could not be read", "troubleshooting.md"),
    "hardware-mig-mode": Kind(_N, "a GPU in MIG mode without any partition", "mig.md"),
    "toolkit-missing": Kind(_W, "containers get less than they could", "install.md"),
    "node-not-registered": Kind(_E, "no plugin of this driver is registered on the node", "troubleshooting.md"),
    "node-dead-socket": Kind(_W, "a socket behind which nobody listens", "troubleshooting.md"),
    "node-second-driver": Kind(_E, "two plugins serve the same driver name", "from-nvidias-driver.md"),
    "node-device-plugin": Kind(_E, "a device plugin serves the same GPUs", "from-the-device-plugin.md"),
    "node-ledger": Kind(_E, "the ledger can't be read", "troubleshooting.md"),
    "node-half-done": Kind(_W, "a claim is half-prepared", "troubleshooting.md"),
    "node-cdi-missing": Kind(_E, "a prepared claim has no CDI file", "troubleshooting.md"),
    "node-cdi-orphan": Kind(_W, "a CDI file that belongs to no claim", "troubleshooting.md"),
    "agent-not-ready": Kind(_E, "a pod of this driver is not ready", "troubleshooting.md"),
    "slices-none": Kind(_E, "this driver publishes nothing", "troubleshooting.md"),
    "slices-node-missing": Kind(_W, "a node with GPUs has no slices", "troubleshooting.md"),
    "slices-no-node": Kind(_W, "slices of a node that is gone", "operations.md"),
    "slices-incomplete": Kind(_E, "a pool is incomplete: the scheduler does not use it", "troubleshooting.md"),
    "slices-stale": Kind(_W, "slices of an older generation", "operations.md"),
    "slices-second-driver": Kind(_E, "another driver publishes the same GPUs", "from-nvidias-driver.md"),
    "slices-differ": Kind(_E, "slices do not say what the hardware is", "troubleshooting.md"),
    "class-missing": Kind(_E, "a class that claims name does not exist", "install.md"),
    "class-no-match": Kind(_N, "a class matches no device, and nobody asks for it", "selectors.md"),
    "class-wanted-no-match": Kind(_E, "a class that claims name matches no device", "selectors.md"),
    "class-foreign": Kind(_W, "a class matches devices of other drivers as well", "selectors.md"),
    "class-broken": Kind(_E, "a selector of a class fails", "selectors.md"),
    "tenants-class": Kind(_W, "a class leads others to shares of one namespace", "security.md"),
    "tenants-no-policy": Kind(_E, "no policy keeps namespaces from each other's shares", "security.md"),
    "claim-not-prepared": Kind(_E, "allocated, but not prepared", "troubleshooting.md"),
    "claim-gone": Kind(_W, "prepared, but the claim is gone", "troubleshooting.md"),
    "claim-finished-pod": Kind(_W, "reserved by a pod that has ended or is gone", "troubleshooting.md"),
    "claim-waits": Kind(_N, "a pod waits for devices", "allocation.md"),
    "claim-device-gone": Kind(_E, "a claim holds a device that is not published", "troubleshooting.md"),
    "access-old-label": Kind(_W, "a namespace has the old label for admin access", "operations.md"),
    "access-admin-refused": Kind(_W, "admin access is asked for where it is not allowed", "operations.md"),
    "access-no-policy": Kind(_W, "no admission policy keeps agents to their own node", "security.md"),
    "access-policy-off": Kind(_W, "the admission policy does not deny", "security.md"),
    "access-missing-right": Kind(_E, "the agent lacks a right", "security.md"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `how` says how it is known, `remedy` what to do."""

    id: str
    subject: str
    message: str
    how: str
    remedy: str

    @property
    def kind(self) -> Kind:
        """Give what findings of this id share."""
        return CATALOGUE[self.id]

    @property
    def severity(self) -> Severity:
        """Give how bad it is."""
        return self.kind.severity

    def document(self) -> Wire:
        """Give the finding for machines."""
        kind = self.kind
        return {**asdict(self), "severity": str(kind.severity), "title": kind.title, "page": f"docs/{kind.page}"}


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that could not be looked at, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an examination gave. `looked_at` names the areas that were checked."""

    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]
    looked_at: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Say whether nothing is wrong; notes do not count."""
        return all(one.severity is Severity.NOTE for one in self.findings)

    def document(self) -> Wire:
        """Give the report for machines."""
        return {
            "isClean": self.is_clean,
            "lookedAt": list(self.looked_at),
            "findings": [one.document() for one in self.findings],
            "unseen": [asdict(one) for one in self.unseen],
        }


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Give findings worst first, each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: (one.severity.rank, one.id, one.subject)))
