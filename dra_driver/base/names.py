"""Names of drivers, pools, devices and CDI devices, and the checks that keep a claim's text out of file names.

Device names come from the PCI address, so they survive reboots, driver reloads and the loss of another GPU.
"""

from __future__ import annotations

import re
from functools import lru_cache

from dra_driver.base.errors import ClaimError, UsageError

NVIDIA_DRIVER = "gpu.nvidia.com"

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[0-9a-zA-Z]([-0-9a-zA-Z]{0,126}[0-9a-zA-Z])?")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_REPLICA = re.compile(r"(?P<device>gpu-.+)-share-[0-9]{1,3}")
_OF_GPU = re.compile(r"(?P<gpu>gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7])(?P<rest>-.+)?")
_BEFORE_PART = re.compile(r"-mig-|-share-")  # what follows the GPU in the names of its partitions and replicas
_VFIO = "-vfio"

MAX_DRIVER_NAME = 63
MAX_NODE_NAME = 253
MAX_POOL_NAME = 253


def is_dns_label(text: str) -> bool:
    """Return whether `text` is a valid name of a device, counter or counter set (at most 63 characters, no dots)."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Return whether `text` is a valid name of most objects of the API (at most 253 characters)."""
    return len(text) <= MAX_NODE_NAME and _DNS_SUBDOMAIN.fullmatch(text) is not None


def is_claim_uid(text: str) -> bool:
    """Return whether `text` is safe as part of a file name, as every UID that Kubernetes generates is."""
    return _UID.fullmatch(text) is not None


def check_driver_name(name: str) -> str:
    """Return `name` if it is a valid name of a DRA driver.

    Raises: UsageError("usage.driver-name").
    Source: resource.k8s.io/v1 ResourceSliceSpec.driver: DNS subdomain, at most 63 characters.
    """
    if len(name) > MAX_DRIVER_NAME or not _DNS_SUBDOMAIN.fullmatch(name):
        raise UsageError(
            "driver-name",
            f"driver name {name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} characters",
            hint=f"the usual name is {NVIDIA_DRIVER}",
        )
    return name


def check_node_name(name: str) -> str:
    """Return `name` if it is a valid name of a node. Raises: UsageError("usage.node-name")."""
    if not name or len(name) > MAX_NODE_NAME or not _DNS_SUBDOMAIN.fullmatch(name):
        raise UsageError(
            "node-name",
            f"node name {name!r} is not a DNS subdomain of at most {MAX_NODE_NAME} characters",
            hint="set --node-name (or NODE_NAME) to spec.nodeName of the pod",
        )
    return name


def check_pod_uid(uid: str) -> str:
    """Return `uid` if it is empty or safe as part of a socket's name. Raises: UsageError("usage.pod-uid")."""
    if uid and not _UID.fullmatch(uid):
        raise UsageError(
            "pod-uid",
            f"pod UID {uid!r} has characters that no Kubernetes UID has",
            hint="set --pod-uid (or POD_UID) to metadata.uid of the pod",
        )
    return uid


def check_claim_uid(uid: str) -> str:
    """Return `uid` if it is safe as part of a file name and of a CDI device name.

    The kubelet sends UUIDs; anything with a slash, a dot or blanks is refused.
    Raises: ClaimError("claim.bad-uid").
    """
    if not _UID.fullmatch(uid):
        raise ClaimError("bad-uid", f"claim UID {uid!r} has characters that no Kubernetes UID has")
    return uid


def pool_name(node: str, driver: str) -> str:
    """Return the name of a node's pool: `<node>/<driver>`.

    When two drivers share a pool name but not their counter sets, the scheduler hands out overlapping partitions (seen
    in 1.35 and 1.36). The driver's name has therefore been part of it since the first release.
    """
    return f"{node}/{driver}"


def check_pool_name(node: str, driver: str) -> str:
    """Return the pool's name if the API server accepts it.

    No shorter name is derived from one that is too long, because two nodes could then share it.
    Raises: UsageError("usage.pool-name").
    Source: resource.k8s.io/v1 ResourcePool.name: at most 253 characters.
    """
    name = pool_name(node, driver)
    if len(name) > MAX_POOL_NAME:
        raise UsageError(
            "pool-name",
            f"the name of node {node!r}'s pool would have {len(name)} characters; at most {MAX_POOL_NAME} are allowed",
            hint=f"with driver name {driver} a node name can have at most {MAX_POOL_NAME - len(driver) - 1} characters",
        )
    return name


def normal_pci_address(text: str) -> str:
    """Return a PCI address as the kernel writes it: `dddd:bb:dd.f` in lower case. NVML writes eight digits of domain.

    A domain above ffff (of a volume management device, or of a virtual bus) has as many digits as it needs.
    Raises: ValueError for text that is not a PCI address.

    >>> normal_pci_address("00000000:65:00.0"), normal_pci_address("00010001:65:00.0")
    ('0000:65:00.0', '10001:65:00.0')
    """
    text = text.strip().lower()
    domain, _, rest = text.partition(":")
    address = f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if len(domain) >= 4 else text
    if not _PCI_ADDRESS.fullmatch(address):
        raise ValueError(f"{text!r} is not a PCI address")
    return address


@lru_cache(1024)  # the names of a node's few GPUs are needed again and again
def gpu_name(pci_address: str) -> str:
    """Return the name of a whole GPU, made from its PCI address.

    >>> gpu_name("0000:65:00.0")
    'gpu-0000-65-00-0'
    """
    return "gpu-" + re.sub(r"[:.]", "-", pci_address)


def vfio_name(pci_address: str) -> str:
    """Return the name of a GPU that is offered to virtual machines.

    >>> vfio_name("0000:65:00.0")
    'gpu-0000-65-00-0-vfio'
    """
    return gpu_name(pci_address) + _VFIO


def gpu_of_vfio_device(name: str) -> str | None:
    """Return the name of the GPU behind a device for virtual machines; None for any other device.

    >>> gpu_of_vfio_device("gpu-0000-65-00-0-vfio"), gpu_of_vfio_device("gpu-0000-65-00-0")
    ('gpu-0000-65-00-0', None)
    """
    found = _OF_GPU.fullmatch(name)
    return found["gpu"] if found and found["rest"] == _VFIO else None


def vfio_sibling(name: str) -> str | None:
    """Return the name of the device for virtual machines that has the same GPU; None for such a device itself.

    >>> vfio_sibling("gpu-0000-65-00-0-mig-1g10gb-19-2"), vfio_sibling("gpu-0000-65-00-0-vfio")
    ('gpu-0000-65-00-0-vfio', None)
    """
    found = _OF_GPU.fullmatch(name)
    return found["gpu"] + _VFIO if found and found["rest"] != _VFIO else None


def taken_gpu(name: str) -> str | None:
    """Return the name of the GPU that a device takes as a whole, for containers or for a virtual machine, else None.

    >>> taken_gpu("gpu-0000-65-00-0"), taken_gpu("gpu-0000-65-00-0-vfio"), taken_gpu("gpu-0000-65-00-0-mig-1g10gb-19-2")
    ('gpu-0000-65-00-0', 'gpu-0000-65-00-0', None)
    """
    found = _OF_GPU.fullmatch(name)
    return found["gpu"] if found and found["rest"] in (None, _VFIO) else None


def whole_sibling(name: str) -> str | None:
    """Return the name of the whole GPU of which a device is a part or a replica; None for any other device.

    >>> whole_sibling("gpu-0000-65-00-0-mig-1g10gb-19-2"), whole_sibling("gpu-0000-65-00-0")
    ('gpu-0000-65-00-0', None)
    """
    found = _OF_GPU.fullmatch(name)
    return found["gpu"] if found and found["rest"] else None


def gpu_of_device(name: str) -> str:
    """Return the name of the GPU that a MIG partition or a replica belongs to; any other name as it is.

    >>> gpu_of_device("gpu-0000-65-00-0-mig-1g10gb-19-2"), gpu_of_device("gpu-0000-65-00-0")
    ('gpu-0000-65-00-0', 'gpu-0000-65-00-0')
    """
    return _BEFORE_PART.split(name, maxsplit=1)[0]


def is_of_gpu(name: str, gpu: str) -> bool:
    """Return whether a name is that of the GPU named `gpu`, of a device of it, or of a part of it ("gpu/part").

    >>> is_of_gpu("gpu-0000-65-00-0-mig-1g10gb-19-2", "gpu-0000-65-00-0")
    True
    """
    return name == gpu or name.startswith((f"{gpu}-", f"{gpu}/"))


def profile_label(profile: str) -> str:
    """Return a MIG profile name in the form used in device names: no dots, lower case, '-' in place of '+'.

    >>> profile_label("1g.10gb+me")
    '1g10gb-me'
    """
    return profile.lower().replace(".", "").replace("+", "-")


def partition_name(pci_address: str, profile: str, gi_profile_id: int, start: int) -> str:
    """Return the name of a MIG partition, made from its GPU, profile, GPU-instance profile id and first memory slice.

    >>> partition_name("0000:65:00.0", "1g.10gb", 19, 2)
    'gpu-0000-65-00-0-mig-1g10gb-19-2'
    """
    return f"{gpu_name(pci_address)}-mig-{profile_label(profile)}-{gi_profile_id}-{start}"


def replica_name(device: str, index: int) -> str:
    """Return the name of one of the replicas that are published in a device's place.

    >>> replica_name("gpu-0000-65-00-0", 2)
    'gpu-0000-65-00-0-share-2'
    """
    return f"{device}-share-{index}"


def replicated_name(name: str) -> str | None:
    """Return the name of the device that a replica belongs to, or None if `name` is not that of a replica.

    >>> replicated_name("gpu-0000-65-00-0-share-2"), replicated_name("gpu-0000-65-00-0")
    ('gpu-0000-65-00-0', None)
    """
    found = _REPLICA.fullmatch(name)
    return found["device"] if found else None


def label_product(product_name: str | None) -> str | None:
    """Return a product name as GPU feature discovery writes it into a label: `NVIDIA-H100-80GB-HBM3`.

    Source: label nvidia.com/gpu.product: characters other than letters, digits and `-_.` are dropped, blanks become
    dashes.
    """
    if product_name is None:
        return None
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", product_name).split()) or None
