"""RemediationPolicy: which action each fault gets, and how often it may be tried.

Pure. A policy can't ask for an action that does not help against the fault: a reset does not reach a GPU that is off
the bus, and neither a reset nor a reboot repairs hardware that has to be replaced.
Source: NVIDIA, GPU memory error management (recovery actions); NVIDIA's catalogue of Xids (79 restarts the machine).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.health.fault import FaultKey


class RemediationMode(enum.StrEnum):
    """The values of `--remediation`."""

    OFF = "off"
    DRY_RUN = "dry-run"  # logs what it would do, without doing or writing anything
    ON = "on"


class RemediationAction(enum.StrEnum):
    """The action that is taken against a fault."""

    NONE = "none"
    RESET = "reset"  # nvidia-smi --gpu-reset
    REBOOT = "reboot"  # a reboot of the machine is asked for; the agent itself never reboots
    COMMAND = "command"  # the administrator's program


class PeerRule(enum.StrEnum):
    """Whether the GPUs that are linked to a GPU are drained with it."""

    AUTO = "auto"  # if the driver asks for it, or if linked GPUs can't be reset one by one
    ALWAYS = "always"
    NEVER = "never"


class CommandRoot(enum.StrEnum):
    """Where the administrator's program is run."""

    AGENT = "agent"  # in the agent's container
    DRIVER = "driver"  # below the driver root, as nvidia-smi


@dataclass(frozen=True, slots=True)
class SiteCommand:
    """The administrator's program: an absolute path, and arguments in which {uuid} and {pci} stand for the GPU."""

    argv: tuple[str, ...]
    timeout_s: float = 600.0
    root: CommandRoot = CommandRoot.AGENT

    def argv_for(self, uuid: str, pci: str) -> tuple[str, ...]:
        """Return the arguments for one GPU."""
        return tuple(one.replace("{uuid}", uuid).replace("{pci}", pci) for one in self.argv)


RESETTABLE = frozenset(
    [
        FaultKey.NEEDS_RESET,
        FaultKey.XID,
        FaultKey.ECC_UNCORRECTABLE,
        FaultKey.ROW_REMAP_PENDING,
        FaultKey.NVLINK,
        FaultKey.FABRIC,
    ]
)
"""Faults that a reset of the GPU may end."""
TREATABLE = RESETTABLE | {FaultKey.NEEDS_REBOOT, FaultKey.GPU_LOST, FaultKey.NOT_ANSWERING, FaultKey.NEEDS_ATTENTION}
"""Faults that an action may end; a reboot may end any of them."""
DEFAULT_ACTIONS: Mapping[FaultKey, RemediationAction] = {
    **dict.fromkeys(TREATABLE, RemediationAction.NONE),
    FaultKey.NEEDS_RESET: RemediationAction.RESET,
    FaultKey.ECC_UNCORRECTABLE: RemediationAction.RESET,
    FaultKey.NEEDS_REBOOT: RemediationAction.REBOOT,
    FaultKey.GPU_LOST: RemediationAction.REBOOT,
}


@dataclass(frozen=True, slots=True)
class RemediationPolicy:
    """The rules of a node. Times are in seconds.

    `nodes` is how many nodes of the cluster may act at the same time, and `tries` how many actions one fault gets;
    `weekly_gpu` and `weekly_node` limit the actions on one GPU and on all GPUs of a node within seven days.
    `reboot_file` is the file that asks for a reboot; None means the one in the agent's own folder.
    """

    actions: Mapping[FaultKey, RemediationAction] = field(default_factory=lambda: DEFAULT_ACTIONS)
    nodes: int = 1
    tries: int = 2
    weekly_gpu: int = 3
    weekly_node: int = 6
    peers: PeerRule = PeerRule.AUTO
    reset_timeout_s: float = 120.0
    reboot_within_s: float = 86400.0
    reboot_file: Path | None = None
    command: SiteCommand | None = None
