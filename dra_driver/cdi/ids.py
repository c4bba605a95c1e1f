"""Names of CDI files, kinds and devices: driver name, claim UID and device name come in, texts go out.

There is one file per claim. Runtimes cache by name, so each name holds the claim's UID and its content never changes.
Source: CDI specification, "Kind" and "CDI Devices": an id is `<vendor>/<class>=<device>`.
"""

from __future__ import annotations

CLASS = "claim"
SUFFIX = ".json"


def vendor(driver: str) -> str:
    """Return the CDI vendor of a DRA driver. The prefix keeps it apart from the vendor's own static specifications.

    >>> vendor("gpu.nvidia.com")
    'k8s.gpu.nvidia.com'
    """
    return f"k8s.{driver}"


def kind(driver: str) -> str:
    """Return the CDI kind of all devices that a DRA driver prepares.

    >>> kind("gpu.nvidia.com")
    'k8s.gpu.nvidia.com/claim'
    """
    return f"{vendor(driver)}/{CLASS}"


def claim_file(driver: str, uid: str) -> str:
    """Return the file name of one claim.

    >>> claim_file("gpu.nvidia.com", "7f3a")
    'k8s.gpu.nvidia.com-claim_7f3a.json'
    """
    return f"{vendor(driver)}-{CLASS}_{uid}{SUFFIX}"


def claim_uid_of(driver: str, file_name: str) -> str | None:
    """Return the claim UID that a file name holds, or None for a file that this driver did not write.

    >>> claim_uid_of("gpu.nvidia.com", "k8s.gpu.nvidia.com-claim_7f3a.json")
    '7f3a'
    >>> claim_uid_of("gpu.nvidia.com", "nvidia.json")
    """
    prefix = f"{vendor(driver)}-{CLASS}_"
    if not (file_name.startswith(prefix) and file_name.endswith(SUFFIX)):
        return None
    return file_name[len(prefix) : -len(SUFFIX)] or None


def device_name(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the name of one prepared device inside its claim's file; a share of a device also carries its share id.

    >>> device_name("7f3a", "gpu-0000-65-00-0")
    '7f3a-gpu-0000-65-00-0'
    """
    return f"{uid}-{device}-{share_id}" if share_id else f"{uid}-{device}"


def device_id(driver: str, uid: str, device: str, share_id: str | None = None) -> str:
    """Return the fully qualified CDI device id that the kubelet hands to the runtime.

    >>> device_id("gpu.nvidia.com", "7f3a", "gpu-0000-65-00-0")
    'k8s.gpu.nvidia.com/claim=7f3a-gpu-0000-65-00-0'
    """
    return f"{kind(driver)}={device_name(uid, device, share_id)}"
