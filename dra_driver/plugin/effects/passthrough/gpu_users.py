"""GPU users: the processes that use a GPU, which must not be taken from its driver or a virtual machine while they do.

In: a GPU. Out: nothing, or an error that names the processes, with their pods. All processes of the host are searched
for device nodes that they have open, and the vendor's library or kernel driver may list further ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.passthrough import users
from dra_driver.hardware.passthrough.attached_devices import read_attached_devices
from dra_driver.hardware.passthrough.nodes import every_node_name
from dra_driver.hardware.passthrough.writing import BusAccess
from dra_driver.hardware.port import Hardware, ProcessLister, Resettable
from dra_driver.model.errors import HardwareError, Retry
from dra_driver.plugin.node_claims.host_processes import described

MAX_NAMED = 8


class GpuUsers:
    """The users of one node's GPUs."""

    def __init__(self, hardware: Hardware, access: BusAccess) -> None:
        self._hardware, self._access = hardware, access

    def listed(self, gpu: GpuFacts) -> frozenset[int]:
        """Return the pids of the processes that the vendor's library lists on a GPU; none if it can't list them."""
        if not isinstance(self._hardware, ProcessLister):
            return frozenset()
        try:
            return frozenset(self._hardware.processes(gpu, None))
        except HardwareError:
            return frozenset()

    def require_unused(self, gpu: GpuFacts, listed: Collection[int] = (), companions: Iterable[str] = ()) -> None:
        """Refuse a GPU that a process uses or has open, and one whose companions are in use.

        `listed` are pids that the vendor's library has listed on the GPU. `companions` are the PCI addresses of
        functions that have to be handed over with the GPU. Raises: HardwareError("hardware.gpu-in-use").
        """
        roots = self._access.roots
        names = users.node_names(roots, gpu.pci_address, gpu.nodes)
        numbers = read_attached_devices(roots, gpu.pci_address).nodes
        found = {*listed, *users.processes_with(roots, names, gpu.pci_address, numbers)}
        if isinstance(self._hardware, users.ComputeLister):
            found |= self._hardware.computing_on(gpu.pci_address)
        if isinstance(self._hardware, Resettable):
            found.update(self._hardware.open_by(gpu))
        self._refuse(found, f"GPU {gpu.pci_address} can't leave its driver")
        for address in companions:
            attached = read_attached_devices(roots, address)
            text = f"{address}, which goes along with GPU {gpu.pci_address}, can't leave its driver"
            self._refuse(users.processes_with(roots, (), numbers=attached.nodes), text)
            if attached.in_use:
                raise _in_use(f"{text}: it has {', '.join(attached.in_use[:MAX_NAMED])}", "remove them")

    def require_left(self, address: str, group: int) -> None:
        """Refuse a GPU that a virtual machine still has. Raises: HardwareError("hardware.gpu-in-use")."""
        roots = self._access.roots
        found = users.processes_with(roots, every_node_name(roots, address, group))
        self._refuse(found, f"GPU {address} can't be taken back")

    def _refuse(self, pids: Collection[int], text: str) -> None:
        if not pids:
            return
        proc = Path(self._access.roots.proc)
        named = described(sorted(pids)[:MAX_NAMED], proc)
        more = f" and {len(pids) - MAX_NAMED} more" if len(pids) > MAX_NAMED else ""
        hint = "end them or make them release the GPU (docs/kubevirt.md lists the usual ones)"
        raise _in_use(f"{text}: it is open in {', '.join(named)}{more}", hint)


def _in_use(text: str, hint: str) -> HardwareError:
    return HardwareError("gpu-in-use", text, hint=hint, retry=Retry.LATER)
