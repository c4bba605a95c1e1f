"""The file of GPUs that virtual machines may have: YAML as `PassthroughRules`.

In: a path. Out: rules, or one InputError with every fault, its line and its path. The format is described in
docs/kubevirt.md. Importing this module costs megabytes of memory, as `section` does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dra_driver.documents.section import Section, Text, described, wrong
from dra_driver.documents.strict_file import read_strictly
from dra_driver.inventory.passthrough.rules import ALL_GPUS, PassthroughRule, PassthroughRules
from dra_driver.model.names import normal_pci_address

MAX_RULES, MAX_NAMES = 256, 256
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")


def read_passthrough_rules(path: Path) -> PassthroughRules:
    """Read the file. Raises: InputError("input.passthrough") with every fault; those of `read_document`."""
    file = read_strictly(path, _PassthroughFile, "passthrough", "file of GPUs for virtual machines")
    return PassthroughRules(
        tuple(
            PassthroughRule(tuple(row.nodes), tuple(row.devices), is_only_passed=row.use == "vm", driver=row.driver)
            for row in file.gpus
        )
    )


def _gpu(text: str) -> str:
    if text == ALL_GPUS or _UUID.fullmatch(text):
        return text
    try:
        return normal_pci_address(text)
    except ValueError:
        expected = "a PCI address such as 0000:41:00.0, a GPU's UUID, or all"
        raise wrong(f"expected {expected}, got {described(text)}") from None


class _GpusSection(Section):
    nodes: list[Annotated[str, Field(pattern=r"^[a-z0-9*?][a-z0-9.*?-]{0,252}$")]] = Field(
        ["*"], max_length=MAX_NAMES, description="a node's name, or a pattern of names with * and ?"
    )
    devices: list[Annotated[Text, AfterValidator(_gpu)]] = Field(
        max_length=MAX_NAMES, description=f"PCI addresses and UUIDs of GPUs, or {ALL_GPUS}"
    )
    use: Literal["either", "vm"] = "either"
    driver: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9_-]{0,62}vfio[_-]pci|vfio-pci)$",
        description="the name of a VFIO driver such as vfio-pci",
    )


class _PassthroughFile(Section):
    version: Literal["passthrough/v1"]
    gpus: list[_GpusSection] = Field(max_length=MAX_RULES, description="a list of rules")
