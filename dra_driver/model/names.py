"""Names: of drivers, pools, devices, CDI devices; and the checks that keep a claim's text out of file names.

Device names come from the PCI address, so they survive reboots, driver reloads and the loss of another GPU.
"""

from __future__ import annotations

import re

from dra_driver.model.errors import ClaimError, UsageError

NVIDIA_DRIVER = "gpu.nvidia.com"

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[0-9a-zA-Z]([-0-9a-zA-Z]{0,126}[0-9a-zA-Z])?")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_REPLICA = re.compile(r"(?P<device>gpu-.+)-share-[0-9]{1,3}")

DRIVER_NAME_MAX = 63
NODE_NAME_MAX = 253
POOL_NAME_MAX = 253


def is_dns_label(text: str) -> bool:
    """Return whether `text` may name a device, counter or counter set (at most 63 characters, no dots)."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether `text` may name most objects of the API (at most 253 characters)."""
    return len(text) <= NODE_NAME_MAX and _DNS_SUBDOMAIN.fullmatch(text) is not None


def is_claim_uid(text: str) -> bool:
    """Whether `text` is safe as part of a file name, as every UID that Kubernetes makes is."""
    return _UID.fullmatch(text) is not None


def check_driver_name(name: str) -> str:
    """Return `name` if it may name a DRA driver.

    Raises: UsageError("usage.driver-name").
    Source: resource.k8s.io/v1 ResourceSliceSpec.driver: DNS subdomain, at most 63 characters.
    """
    if len(name) > DRIVER_NAME_MAX or not _DNS_SUBDOMAIN.fullmatch(name):
        raise UsageError(
            "driver-name",
            f"driver name {name!r} is not a DNS subdomain of at most {DRIVER_NAME_MAX} characters",
            hint=f"the usual name is {NVIDIA_DRIVER}",
        )
    return name


def check_node_name(name: str) -> str:
    """Return `name` if it may name a node. Raises: UsageError("usage.node-name")."""
    if not name or len(name) > NODE_NAME_MAX or not _DNS_SUBDOMAIN.fullmatch(name):
        raise UsageError(
            "node-name",
            f"node name {name!r} is not a DNS subdomain of at most {NODE_NAME_MAX} characters",
            hint="set --node-name (or NODE_NAME) to spec.nodeName of the pod",
        )
    return name


def check_pod_uid(uid: str) -> str:
    """Return `uid` if it may stand in the name of a socket, or is empty. Raises: UsageError("usage.pod-uid")."""
    if uid and not _UID.fullmatch(uid):
        raise UsageError(
            "pod-uid",
            f"pod UID {uid!r} has characters that no Kubernetes UID has",
            hint="set --pod-uid (or POD_UID) to metadata.uid of the pod",
        )
    return uid


def check_claim_uid(uid: str) -> str:
    """Return `uid` if it is safe as part of a file name and of a CDI device name.

    Raises: ClaimError("claim.bad-uid"): the kubelet sends UUIDs; anything with a slash, a dot or blanks is refused.
    """
    if not _UID.fullmatch(uid):
        raise ClaimError("bad-uid", f"claim UID {uid!r} has characters that no Kubernetes UID has")
    return uid


def pool_name(node: str, driver: str) -> str:
    """Name the pool of a node: `<node>/<driver>`.

    Two drivers that share a pool name but not their counter sets are handed overlapping partitions by the scheduler
    (seen in 1.35 and 1.36), so the driver's name is part of it from the first release.
    """
    return f"{node}/{driver}"


def check_pool_name(node: str, driver: str) -> str:
    """Return the pool's name if the API server takes it.

    Raises: UsageError("usage.pool-name"). No shorter name is derived: two nodes could then share it.
    Source: resource.k8s.io/v1 ResourcePool.name: at most 253 characters.
    """
    name = pool_name(node, driver)
    if len(name) > POOL_NAME_MAX:
        raise UsageError(
            "pool-name",
            f"the pool of node {node!r} would have a name of {len(name)} characters, {POOL_NAME_MAX} are allowed",
            hint=f"with driver name {driver} a node's name may have {POOL_NAME_MAX - len(driver) - 1} characters",
        )
    return name


def normal_pci_address(text: str) -> str:
    """Return a PCI address as the kernel writes it, `dddd:bb:dd.f` in lower case; NVML writes eight digits of domain.

    A domain above ffff (of a volume management device, or a virtual bus) has as many digits as it needs.

    >>> normal_pci_address("00000000:65:00.0"), normal_pci_address("00010001:65:00.0")
    ('0000:65:00.0', '10001:65:00.0')
    """
    text = text.strip().lower()
    domain, _, rest = text.partition(":")
    address = f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if len(domain) >= 4 else text
    if not _PCI_ADDRESS.fullmatch(address):
        raise ValueError(f"{text!r} is not a PCI address")
    return address


def gpu_name(pci_address: str) -> str:
    """Name a whole GPU after its PCI address.

    >>> gpu_name("0000:65:00.0")
    'gpu-0000-65-00-0'
    """
    return "gpu-" + re.sub(r"[:.]", "-", pci_address)


def profile_label(profile: str) -> str:
    """Return a MIG profile name as part of a device name: no dots, lower case, '+' becomes '-'.

    >>> profile_label("1g.10gb+me")
    '1g10gb-me'
    """
    return profile.lower().replace(".", "").replace("+", "-")


def partition_name(pci_address: str, profile: str, gi_profile_id: int, start: int) -> str:
    """Name a MIG partition after its GPU, profile, GPU-instance profile id and first memory slice.

    >>> partition_name("0000:65:00.0", "1g.10gb", 19, 2)
    'gpu-0000-65-00-0-mig-1g10gb-19-2'
    """
    return f"{gpu_name(pci_address)}-mig-{profile_label(profile)}-{gi_profile_id}-{start}"


def replica_name(device: str, index: int) -> str:
    """Name one of the replicas that are published in a device's place.

    >>> replica_name("gpu-0000-65-00-0", 2)
    'gpu-0000-65-00-0-share-2'
    """
    return f"{device}-share-{index}"


def replicated_name(name: str) -> str | None:
    """Return the name of the device that a replica is of; None for any other device.

    >>> replicated_name("gpu-0000-65-00-0-share-2"), replicated_name("gpu-0000-65-00-0")
    ('gpu-0000-65-00-0', None)
    """
    found = _REPLICA.fullmatch(name)
    return found["device"] if found else None
