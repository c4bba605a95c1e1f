"""The rendering of edits as a CDI document: pure, deterministic to the byte, at the lowest version that suffices.

What every device of the file needs is written once, in the document's own containerEdits; the rest is written under
each device. Annotations (0.6.0), uid and mount types are never written. Older runtimes refuse a document whose version
they don't know (podman 4.3 stops at 0.5.0), and newer ones refuse fields that came after the version given, so we write
the lowest version that covers the fields used.
Source: CDI specification, "Released versions", "JSON Definition", "Kind" and "CDI Devices".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from dra_driver.base.edits import DeviceNode, Edits, Hook, Mount
from dra_driver.base.errors import PrepareError
from dra_driver.base.wire import Wire

VENDOR_CHARS = 253  # the limit of a DNS subdomain
CLASS_CHARS = 63  # the limit of a kind's name segment
_VENDOR = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_CLASS = _VENDOR
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_LOWEST = "0.3.0"  # the lowest CDI version that is ever written
_DIGIT_FIRST = "0.5.0"  # device names that start with a digit, which a claim's UID does in 10 of 16 cases


def render(kind: str, devices: Mapping[str, Edits], common: Edits) -> bytes:
    """Return the bytes of a CDI document of `kind` with the given devices, in name order; equal input, equal bytes.

    `devices` maps CDI device names to what each adds; `common` is what every device adds.
    Raises: PrepareError("prepare.cdi-invalid") for a name that CDI does not accept, for no devices at all, or for a
    device without edits (runtimes refuse such a file).
    """
    versions = [_lowest_of_kind(kind), _lowest_of_edits(common)]
    if not devices:
        raise _invalid(f"CDI document of kind {kind!r} has no device; at least one is required")
    entries = []
    for name, edits in sorted(devices.items()):
        _check_device(name, edits)
        entries.append({"name": name, "containerEdits": _edits(edits)})
        versions += _lowest_of_edits(edits), _DIGIT_FIRST if name[0].isdigit() else _LOWEST
    document = {
        "cdiVersion": max(versions),
        "kind": kind,
        "devices": entries,
        "containerEdits": _edits(common),
    }
    return f"{json.dumps(document, separators=(',', ':'), ensure_ascii=False)}\n".encode()


def _lowest_of_kind(kind: str) -> str:
    """Return the lowest CDI version that allows a kind, after checking it. Raises: PrepareError.

    Source: CDI specification, "Released versions": 0.6.0 dots in the class.
    """
    vendor, _, class_ = kind.partition("/")
    if len(vendor) > VENDOR_CHARS or not _VENDOR.fullmatch(vendor):
        raise _invalid(f"CDI kind {kind!r}: the vendor must start with a letter and consist of letters, digits and ._-")
    if len(class_) > CLASS_CHARS or not _CLASS.fullmatch(class_):
        raise _invalid(f"CDI kind {kind!r}: the class must start with a letter and consist of letters, digits and ._-")
    return "0.6.0" if "." in class_ else _LOWEST


def _check_device(name: str, edits: Edits) -> None:
    if not _DEVICE.fullmatch(name):
        raise _invalid(
            f"CDI device name {name!r} must start and end with a letter or digit and consist of those and ._:-"
        )
    if not edits:
        raise _invalid(f"CDI device {name!r} has no edits; runtimes refuse a device that changes nothing")


def _invalid(message: str) -> PrepareError:
    return PrepareError("cdi-invalid", message)


def _lowest_of_edits(edits: Edits) -> str:
    """Return the lowest CDI version that has the fields of these edits.

    Source: CDI specification, "Released versions": 0.5.0 hostPath of device nodes, 0.7.0 additionalGids.
    """
    if _gids(edits):
        return "0.7.0"
    return "0.5.0" if any(node.host_path for node in edits.device_nodes) else _LOWEST


def _edits(edits: Edits) -> Wire:
    wire: Wire = {}
    if edits.env:
        wire["env"] = list(edits.env)
    if edits.device_nodes:
        wire["deviceNodes"] = [_node(node) for node in edits.device_nodes]
    if edits.mounts:
        wire["mounts"] = [_mount(mount) for mount in edits.mounts]
    if edits.hooks:
        wire["hooks"] = [_hook(hook) for hook in edits.hooks]
    if gids := _gids(edits):
        wire["additionalGids"] = gids
    return wire


def _gids(edits: Edits) -> list[int]:
    return sorted({gid for gid in edits.additional_gids if gid})  # runtimes ignore group 0


def _node(node: DeviceNode) -> Wire:
    wire: Wire = {"path": node.path}
    if node.host_path:
        wire["hostPath"] = node.host_path
    wire |= {"type": node.type, "major": node.major, "minor": node.minor}
    if node.file_mode is not None:
        wire["fileMode"] = node.file_mode
    wire["permissions"] = node.permissions
    if node.gid:
        wire["gid"] = node.gid
    return wire


def _mount(mount: Mount) -> Wire:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": list(mount.options),
    }


def _hook(hook: Hook) -> Wire:
    wire: Wire = {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}
    if hook.env:
        wire["env"] = list(hook.env)
    return wire


# Names of CDI files, kinds and devices: driver name, claim UID and device name come in, texts go out.

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
