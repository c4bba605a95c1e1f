"""Resets of simulated GPUs: a fault that a reset ended does not return until the profile is changed.

In: a reset of a GPU. Out: the health that is reported afterwards. Resets are kept with everything else that changes at
run time, so that a restarted agent sees the same GPU; a reboot forgets them, because the profile then describes the
machine as it started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.health_section import ResetOutcome, SimulatedHealth
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.hardware.simulated.state_file import State, StateFile
from dra_driver.model.errors import HardwareError, Retry

_CURED_ACTIONS = (1, 3, 4)  # the recovery actions of NVML that are a reset, or end with one


class Resets:
    """The resets of one node's GPUs.

    If the profile's driver root has a program nvidia-smi, it is run as for real GPUs.
    """

    def __init__(self, state_dir: Path | None, boot_id: str, roots: Roots) -> None:
        self._file = StateFile(state_dir / "simulated-resets.json" if state_dir else None, boot_id)
        self._roots = roots

    @property
    def has_program(self) -> bool:
        """Return whether the driver root has the program that resets GPUs."""
        mount = self._roots.driver_mount
        return mount != "/" and Path(mount, "usr/bin/nvidia-smi").exists()

    def reset(self, gpus: Sequence[GpuFacts], known: Mapping[str, SimulatedGpu], deadline_s: float) -> None:
        """Reset GPUs. Raises: HardwareError("hardware.reset-failed")."""
        sections = {gpu.pci_address: known[gpu.pci_address].health for gpu in gpus if gpu.pci_address in known}
        if len(sections) < len(gpus) or any(one.reset is ResetOutcome.FAILS for one in sections.values()):
            raise HardwareError("reset-failed", "the profile makes the reset fail", retry=Retry.LATER)
        if self.has_program:
            from dra_driver.hardware.nvidia.changes import reset_gpus  # noqa: PLC0415 - only where there is one

            reset_gpus(self._roots, gpus, deadline_s)
        for address, section in sections.items():
            if section.reset is ResetOutcome.CURES:
                mark = {"health": repr(section), "xids": len(section.xids)}
                self._file.change(address, lambda _, mark=mark: mark)  # type: ignore[misc]

    def after(self, gpus: Mapping[str, SimulatedGpu]) -> Mapping[str, SimulatedGpu]:
        """Return the GPUs as they are after their resets."""
        marks = self._file.read()
        return {name: _after(gpu, marks[name]) if name in marks else gpu for name, gpu in gpus.items()}


def _after(gpu: SimulatedGpu, mark: State) -> SimulatedGpu:
    health = replace(gpu.health, xids=gpu.health.xids[int(mark["xids"]) :])
    return replace(gpu, health=_cured(health) if repr(gpu.health) == mark["health"] else health)


def _cured(health: SimulatedHealth) -> SimulatedHealth:
    return replace(
        health,
        recovery_action=0 if health.recovery_action in _CURED_ACTIONS else health.recovery_action,
        ecc_uncorrectable=health.ecc_uncorrectable and 0,
        remap_pending=health.remap_pending and False,
        links_down=(),
        fabric_summary=health.fabric_summary and 1,
    )
