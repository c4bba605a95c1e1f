"""Subjects: the labels that say which GPU or GPU instance a series is about, and who has it.

In: facts of GPUs, holders. Out: label texts. The names and their order are those of the common exporter; those that
begin with `dra_` say which claim it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.inventory.offering import Inventory
from dra_driver.metering.holders import Holder, Subject
from dra_driver.metering.names import DRIVER_VERSION
from dra_driver.telemetry.exposition import labels_text

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """How series are labelled: the node's name under `hostname_label`, and fields that are labels of every series."""

    node: str
    driver: str
    hostname_label: str = "Hostname"
    fields: tuple[str, ...] = (DRIVER_VERSION,)


def gpus_of(inventory: Inventory) -> tuple[GpuFacts, ...]:
    """Return this node's GPUs in the order of their PCI addresses, which is that of the library's indices."""
    devices = (*inventory.offering.every(), *inventory.hidden)
    found = {device.gpu.pci_address: device.gpu for device in devices}
    return tuple(found[address] for address in sorted(found))


def labels_of_subjects(gpus: Iterable[GpuFacts], style: LabelStyle, driver_version: str) -> dict[Subject, Pairs]:
    """Return the labels of each GPU, and of each of its GPU instances."""
    found: dict[Subject, Pairs] = {}
    for index, gpu in enumerate(gpus):
        head = _head(index, gpu)
        tail = ((style.hostname_label, style.node), *_fields(gpu, style, driver_version))
        found[gpu.pci_address, None] = (*head, *tail)
        for partition in gpu.partitions:
            instance = (("GPU_I_PROFILE", partition.profile), ("GPU_I_ID", str(partition.gi_id)))
            found.setdefault((gpu.pci_address, partition.gi_id), (*head, *instance, *tail))
    return found


def labels_of_holder(holder: Holder, partition: PartitionFacts | None, style: LabelStyle) -> Pairs:
    """Return the labels that say whose a series is."""
    pod, pod_uid, container = holder.pod
    mig: Pairs = ()
    if partition is not None:
        mig = (("dra_mig_profile", partition.profile), ("dra_mig_device_uuid", partition.uuid))
    return (
        ("namespace", holder.namespace),
        ("pod", pod),
        ("container", container),
        ("pod_uid", pod_uid),
        ("dra_claim_name", holder.name),
        ("dra_claim_namespace", holder.namespace),
        ("dra_claim_uid", holder.uid),
        ("dra_driver_name", style.driver),
        ("dra_pool_name", holder.pool),
        ("dra_device_name", holder.device),
        ("dra_device_class", holder.device_class),
        ("dra_share_id", holder.share_id),
        *mig,
    )


def partitions_of(gpus: Iterable[GpuFacts]) -> Mapping[Subject, PartitionFacts]:
    """Return the partition of each GPU instance, the first one where an instance has several."""
    found: dict[Subject, PartitionFacts] = {}
    for gpu in gpus:
        for partition in gpu.partitions:
            found.setdefault((gpu.pci_address, partition.gi_id), partition)
    return found


def text_of(*parts: Pairs) -> str:
    """Return label pairs as text."""
    return labels_text(pair for part in parts for pair in part)


def _head(index: int, gpu: GpuFacts) -> Pairs:
    return (
        ("gpu", str(index)),
        ("UUID", gpu.uuid),
        ("pci_bus_id", _bus_id(gpu.pci_address)),
        ("device", f"nvidia{gpu.minor}"),
        ("modelName", gpu.product_name or ""),
    )


def _bus_id(address: str) -> str:
    """Return a PCI address as the library writes it.

    >>> _bus_id("0000:ab:00.0")
    '00000000:AB:00.0'
    """
    domain, _, rest = address.partition(":")
    return f"{domain.rjust(8, '0')}:{rest}".upper()


def _fields(gpu: GpuFacts, style: LabelStyle, driver_version: str) -> Iterator[tuple[str, str]]:
    values = {
        DRIVER_VERSION: driver_version,
        "DCGM_FI_DEV_BRAND": (gpu.brand if isinstance(gpu, NvidiaGpu) else None) or "",
        "DCGM_FI_DEV_SERIAL": gpu.serial or "",
        "DCGM_FI_DEV_VBIOS_VERSION": gpu.vbios_version or "",
    }
    return ((name, values[name]) for name in style.fields)
