"""Values: how published values are read from facts.

In: what is known about one device. Out: a value, or None where it is not known. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.published import Fact, Found

_FAMILIES = {
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada-lovelace",
    "hopper",
    "blackwell",
    "rubin",
}


def of_partition(field: str) -> Callable[[Found], Fact]:
    """Return a reader of one fact of the partition."""

    def read(found: Found) -> Fact:
        value: Fact = getattr(found.partition, field, None)
        return value

    return read


def memory(found: Found) -> Fact:
    """Return the memory in bytes."""
    return found.gpu.memory_bytes if found.partition is None else found.partition.memory_bytes


def uuid(found: Found) -> Fact:
    """Return the UUID; a partition that Prepare creates has none yet."""
    return found.gpu.uuid if found.partition is None else found.partition.uuid or None


def of_share(field: str) -> Callable[[Found], Fact]:
    """Return a reader of one property of the share."""

    def read(found: Found) -> Fact:
        value: Fact = getattr(found.share, field, None)
        return str(value) if isinstance(value, str) else value  # an enumeration is published as its text

    return read


def strategy(found: Found) -> Fact:
    """Return how a shared device is shared."""
    return str(found.share.strategy or "none") if found.share else None


def family(gpu: GpuFacts) -> str | None:
    """Return the GPU's family as GPU feature discovery names it, or None where it has no name for it.

    Source: label nvidia.com/gpu.family, which is derived from the compute capability; the architecture determines the
    same families and more.
    """
    word = (gpu.architecture or "").lower().replace(" ", "-")
    if word in _FAMILIES:
        return word
    major, _, rest = (gpu.compute_capability or "").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    if int(major) == 7:
        return "volta" if int(minor) < 5 else "turing"
    if int(major) == 8:
        return "ampere" if int(minor) < 9 else "ada-lovelace"
    return {3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 10: "blackwell", 12: "blackwell"}.get(int(major))


def label_product(product_name: str | None) -> str | None:
    """Return a product name as GPU feature discovery writes it into a label: `NVIDIA-H100-80GB-HBM3`.

    Source: label nvidia.com/gpu.product: characters other than letters, digits and `-_.` are dropped, blanks become
    dashes.
    """
    if product_name is None:
        return None
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", product_name).split()) or None
