"""Models: the properties of a kind of GPU, one file for each model.

In: the name of a shipped model, or a `models` entry of a profile. Out: `Model`, frozen, or faults. The file names the
sources of its figures; a missing figure is unknown and has no default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dra_driver.documents.document import read_document
from dra_driver.documents.fields import Fields
from dra_driver.hardware.simulated.mig import MigTable, decode_mig_table

FOLDER = Path(__file__).parent / "models"
DATE = r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"


@dataclass(frozen=True, slots=True)
class Model:
    """One kind of GPU. `nvlinks` is the number of links of the card, None where it is unknown."""

    product_name: str
    memory_mib: int | None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None  # a strict semantic version
    pci_device_id: str | None = None
    memory_bandwidth_gb_per_s: int | None = None
    multiprocessors: int | None = None
    power_limit_max_w: int | None = None
    sm_clock_max_mhz: int | None = None
    nvlinks: int | None = None
    mig_capable: bool | None = None
    mig: MigTable | None = None


def model_names() -> tuple[str, ...]:
    """Return the names of the shipped models."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def read_model(name: str, faults: list[str]) -> Model:
    """Read a shipped model; append what is wrong with it to `faults`. Raises: InputError if its file can't be read."""
    model, found = _read_once(name)
    faults += found
    return model


@cache  # a shipped file does not change, and all GPUs of all profiles are of a few models
def _read_once(name: str) -> tuple[Model, tuple[str, ...]]:
    faults: list[str] = []
    model = decode_model(Fields(read_document(FOLDER / f"{name}.yaml"), f"model {name}", faults))
    return model, tuple(faults)


def decode_model(fields: Fields) -> Model:
    """Decode one model; a shipped one must state where its figures come from."""
    sources = fields.section("sources")
    for key, text in sources.entries():
        if not isinstance(text, str) or not text:
            sources.fault(key, "expected the source as a string")
    fields.optional_text("lookedUp", pattern=DATE, what="a date such as 2026-11-20")
    capability = fields.optional_text("computeCapability", pattern=r"[1-9][0-9]?\.[0-9]", what="such as 9.0")
    model = Model(
        product_name=fields.text("productName"),
        memory_mib=fields.optional_integer("memoryMiB", 1, 1 << 24),
        brand=fields.optional_text("brand"),
        architecture=fields.optional_text("architecture"),
        compute_capability=f"{capability}.0" if capability else None,
        pci_device_id=fields.optional_text("pciDeviceId", pattern=r"0x[0-9a-f]{4}", what="such as 0x2330"),
        memory_bandwidth_gb_per_s=fields.optional_integer("memoryBandwidthGBps", 1, 1_000_000),
        multiprocessors=fields.optional_integer("multiprocessors", 1, 1024),
        power_limit_max_w=fields.optional_integer("powerLimitMaxW", 1, 10_000),
        sm_clock_max_mhz=fields.optional_integer("smClockMaxMHz", 1, 10_000),
        nvlinks=fields.optional_integer("nvlinks", 0, 64),
        mig_capable=fields.optional_flag("migCapable"),
        mig=decode_mig_table(fields.section("mig")) if fields.has("mig") else None,
    )
    if model.mig and model.mig_capable is not True:
        fields.fault("migCapable", "must be true where a mig table is given")
    fields.close()
    return model
