"""The file of GPUs that virtual machines may have: YAML as `PassthroughRules`.

In: a path. Out: rules, or one InputError with every fault, its line and its path. The format is described in
docs/kubevirt.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from dra_driver.documents.fields import Fields
from dra_driver.documents.strict_file import check_version, read_strictly
from dra_driver.inventory.passthrough.rules import ALL_GPUS, PassthroughRule, PassthroughRules
from dra_driver.model.names import normal_pci_address

VERSION = "passthrough/v1"
MAX_RULES, MAX_NAMES = 256, 256
_EITHER, _VM = "either", "vm"
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_DRIVER = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}vfio[_-]pci|vfio-pci")
_NODE = re.compile(r"[a-z0-9*?][a-z0-9.*?-]{0,252}")


def read_passthrough_rules(path: Path) -> PassthroughRules:
    """Read the file. Raises: InputError("input.passthrough") with every fault; those of `read_document`."""

    def decode(root: Fields) -> PassthroughRules:
        check_version(root, VERSION)
        rows = root.rows("gpus", maximum=MAX_RULES)
        if not root.has("gpus"):
            root.fault("gpus", "missing, expected a list of rules")
        return PassthroughRules(tuple(map(_rule, rows)))

    return read_strictly(path, decode, "passthrough", "file of GPUs for virtual machines")


def _rule(row: Fields) -> PassthroughRule:
    use = row.optional_text("use") or _EITHER
    if use not in (_EITHER, _VM):
        row.fault("use", f"must be {_EITHER} or {_VM}, is {use!r:.80}")
    driver = row.optional_text("driver") or ""
    if driver and not _DRIVER.fullmatch(driver):
        row.fault("driver", f"must be the name of a VFIO driver such as vfio-pci, is {driver!r:.80}")
    rule = PassthroughRule(_nodes(row), _gpus(row), is_only_passed=use == _VM, driver=driver)
    row.close()
    return rule


def _nodes(row: Fields) -> tuple[str, ...]:
    names = _few(row, "nodes") if row.has("nodes") else ("*",)
    for name in names:
        if not _NODE.fullmatch(name):
            row.fault("nodes", f"{name!r:.80} is neither a node's name nor a pattern of names with * and ?")
    return names


def _few(row: Fields, key: str) -> tuple[str, ...]:
    names = row.texts(key)
    if len(names) > MAX_NAMES:
        row.fault(key, f"has {len(names)} names, at most {MAX_NAMES} are allowed")
    return names[:MAX_NAMES]


def _gpus(row: Fields) -> tuple[str, ...]:
    if not row.has("devices"):
        row.fault("devices", f"missing, expected a list of PCI addresses and UUIDs, or {ALL_GPUS}")
        return ()
    return tuple(_gpu(row, text) for text in _few(row, "devices"))


def _gpu(row: Fields, text: str) -> str:
    if text == ALL_GPUS or _UUID.fullmatch(text):
        return text
    try:
        return normal_pci_address(text)
    except ValueError:
        row.fault("devices", f"{text!r:.80} is neither a PCI address such as 0000:41:00.0, nor a GPU's UUID, nor all")
        return text
