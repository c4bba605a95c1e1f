"""Holders: which claim has which device, and which pods have the claim.

In: the ledger's records, the inventory, the kubelet's report. Out: the holders of each subject: a GPU as a whole, or
one of its GPU instances. Devices with admin access are not held. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.claims.allocated.records import devices_of_record, pod_names_of_record
from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device
from dra_driver.inventory.offering import Inventory
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState
from dra_driver.plugin.node_claims.claim_results import ClaimName
from dra_driver.plugin.node_claims.pod_resources import ClaimUser

Subject = tuple[str, int | None]
"""A GPU by PCI address, and the id of one of its GPU instances, the number of one of its parts, or None."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One device of one claim. `users` are the pods and containers that the kubelet reports for the claim.

    `pod_uids` are the pods for which the claim was reserved when it was prepared, and `pod_names` their names.
    """

    uid: str
    namespace: str
    name: str
    device: str
    pool: str
    share_id: str
    device_class: str
    pod_uids: tuple[str, ...]
    pod_names: tuple[tuple[str, str], ...]
    users: tuple[ClaimUser, ...]

    @property
    def pod(self) -> tuple[str, str, str]:
        """The name, the UID and the container of the only pod that has the claim; "" for each that is not unique."""
        names = {user.pod for user in self.users} or {name for _, name in self.pod_names}
        containers = {user.container for user in self.users}
        name = next(iter(names)) if len(names) == 1 else ""
        uids = [uid for uid, known in self.pod_names if known == name]
        if not uids and len(self.pod_uids) == 1 and not self.pod_names:
            uids = list(self.pod_uids)
        uid = uids[-1] if name and len(uids) == 1 else ""
        return name, uid, next(iter(containers)) if name and len(containers) == 1 else ""


def holders_of(
    records: Iterable[ClaimRecord], inventory: Inventory, users: Mapping[ClaimName, tuple[ClaimUser, ...]]
) -> dict[Subject, tuple[Holder, ...]]:
    """Return the holders of each subject, in the order of the claims' names."""
    found: dict[Subject, list[Holder]] = {}
    for record in records:
        if record.state == ClaimState.UNPREPARING:
            continue
        for holder in _of_record(record, users.get((record.namespace, record.name), ())):
            subject = subject_of(inventory.find(holder.device, holder.share_id))
            if subject is not None:
                found.setdefault(subject, []).append(holder)
    return {subject: tuple(sorted(holders, key=_order)) for subject, holders in found.items()}


def subject_of(device: Device | None) -> Subject | None:
    """Return the subject for a device or the device that it is a share of; None if the partition does not exist."""
    if device is None:
        return None
    if device.partition is None and device.placement is None:
        return subject_of_gpu(device.gpu)
    if device.partition is not None:
        return device.gpu.pci_address, device.partition.gi_id
    placement = device.placement
    existing = (one.gi_id for one in device.gpu.partitions if placement is not None and placement.is_at(one))
    gi_id = next(existing, None)
    return None if gi_id is None else (device.gpu.pci_address, gi_id)


def subject_of_gpu(gpu: GpuFacts) -> Subject:
    """Return the subject for a GPU, or for one part of a GPU that the hardware itself divides."""
    return gpu.pci_address, gpu.part_number


def _of_record(record: ClaimRecord, users: tuple[ClaimUser, ...]) -> Iterator[Holder]:
    names = pod_names_of_record(record.allocation)
    for device in devices_of_record(record.allocation):
        if device.is_admin:
            continue
        yield Holder(
            uid=record.uid,
            namespace=record.namespace,
            name=record.name,
            device=device.device,
            pool=device.pool,
            share_id=device.share_id or "",
            device_class=device.device_class,
            pod_uids=record.pods,
            pod_names=names,
            users=users,
        )


def _order(holder: Holder) -> tuple[str, str, str, str]:
    return holder.namespace, holder.name, holder.device, holder.share_id
