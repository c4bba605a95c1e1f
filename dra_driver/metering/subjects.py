"""Subjects: the labels that identify the GPU or GPU instance of a series, and its holder.

In: facts of GPUs, holders. Out: label texts. The names of a GPU's labels and their order are those of its vendor's
exporter; those that begin with `dra_` identify the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.metric_names import MetricNames, Pairs
from dra_driver.inventory.offering import Inventory
from dra_driver.metering.holders import Holder, Subject, subject_of_gpu
from dra_driver.telemetry.exposition import labels_text


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """How series are labelled: the node's name under `hostname_label`, and fields that are labels of every series."""

    node: str
    driver: str
    names: MetricNames
    hostname_label: str = "Hostname"
    fields: tuple[str, ...] = ()


def gpus_of(inventory: Inventory) -> tuple[GpuFacts, ...]:
    """Return this node's GPUs in the order of their PCI addresses, which is that of the library's indices.

    A GPU that the hardware itself divides is listed as a whole, followed by each of its parts.
    """
    devices = (*inventory.offering.every(), *inventory.hidden)
    gpus = {id(device.gpu): device.gpu for device in devices}.values()  # most devices of a GPU refer to the same facts
    found = {subject_of_gpu(gpu): gpu for gpu in gpus}
    return tuple(found[address, number] for address, number in sorted(found, key=_order))


def labels_of_subjects(gpus: Iterable[GpuFacts], style: LabelStyle, driver_version: str) -> dict[Subject, Pairs]:
    """Return the labels of each GPU, and of each of its GPU instances or parts."""
    found: dict[Subject, Pairs] = {}
    index = 0
    for gpu in gpus:
        head = style.names.gpu_labels(index, gpu)
        tail = ((style.hostname_label, style.node), *_fields(gpu, style, driver_version))
        found[subject_of_gpu(gpu)] = (*head, *tail)
        if gpu.part_number is not None:  # the GPU as a whole is measured even if it is not a device
            found.setdefault((gpu.pci_address, None), (*style.names.gpu_labels(index, replace(gpu, part="")), *tail))
        for partition in gpu.partitions:
            instance = style.names.instance_labels(partition)
            found.setdefault((gpu.pci_address, partition.gi_id), (*head, *instance, *tail))
        index += not gpu.parts  # a divided GPU as a whole has the index of its first part
    return found


def labels_of_holder(holder: Holder, partition: PartitionFacts | None, style: LabelStyle) -> Pairs:
    """Return the labels that identify the holder of a series."""
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
    """Return the partition of each GPU instance, the first one if an instance has several."""
    found: dict[Subject, PartitionFacts] = {}
    for gpu in gpus:
        for partition in gpu.partitions:
            found.setdefault((gpu.pci_address, partition.gi_id), partition)
    return found


def text_of(*parts: Pairs) -> str:
    """Return label pairs as text."""
    return labels_text(pair for part in parts for pair in part)


def _order(subject: Subject) -> tuple[str, int]:
    return subject[0], -1 if subject[1] is None else subject[1]


def _fields(gpu: GpuFacts, style: LabelStyle, driver_version: str) -> Pairs:
    return tuple((name, style.names.fields[name](gpu, driver_version)) for name in style.fields)
