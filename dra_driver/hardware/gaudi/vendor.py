"""Intel's Gaudi: one discovery of its accelerators, what is published of them, their edits, and what is declared.

In: roots. Out: `GaudiCard`s in PCI order, and problems. A card without a number or without its slot is left out,
because neither its nodes nor the number by which programs refer to it would be known.

Source: Linux Documentation/ABI/testing/sysfs-driver-habanalabs (status, module_id, pci_addr); PCI ID database and
Intel's product pages (models and their memory).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.flags import registered_as
from dra_driver.base.names import normal_pci_address
from dra_driver.hardware import pci
from dra_driver.hardware.facts import Edits, Facts, GpuFacts, Hook, Mount, PartitionFacts, Problem, merge
from dra_driver.hardware.pci import edits_of_nodes, on_bus
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.hardware.sysfs import semantic_version
from dra_driver.hardware.vendors import (
    ALL,
    EVERY,
    MEMORY,
    PASSED,
    PCI_ROOT,
    STANDARD_ATTRIBUTES,
    DevicePluginSigns,
    Fact,
    Owner,
    PassthroughTerms,
    Published,
    ReferencePage,
    ValueKind,
    Vendor,
    VendorClass,
    device_memory,
    of_gpu,
)

# The facts of a Gaudi accelerator, in addition to those of every device.


@dataclass(frozen=True, slots=True)
class GaudiCard(GpuFacts):
    """One accelerator. `minor` is its number below /dev/accel; `module_id` is the slot on its board.

    `status` is the kernel driver's word in lower case, "" if it reports none. `memory_bytes` is the size that the model
    has, because no file shows the card's own.
    """

    vendor: ClassVar[str] = "gaudi"

    device_id: int | None = None
    model: str | None = None  # None if the table has no name for the device id
    module_id: int | None = None
    verbs: str = ""  # its InfiniBand device, "uverbs3"; "" if the network driver is not loaded
    status: str = ""

    @property
    def is_healthy(self) -> bool | None:
        """Return whether the kernel driver reports `operational`, None if it reports nothing; other words mean no."""
        return self.status == "operational" if self.status else None


GAUDI = registered_as("gaudi")
DRIVERS = ("habanalabs",)
_ACCEL, _VERBS = re.compile(r"accel(\d{1,4})"), re.compile(r"uverbs\d{1,4}")
_WORD = re.compile(r"[a-z][a-z ]{0,31}")
_OPERATIONAL = "operational"
_GENERATIONS = (  # device ids, model, memory in GiB
    ((0x1000, 0x1001, 0x1010, 0x1011), "Gaudi", 32),
    ((0x1020,), "Gaudi2", 96),
    ((0x1030, 0x1060, 0x1061, 0x1062, 0x1063), "Gaudi3", 128),
)
_MODELS = {device_id: (name, size << 30) for ids, name, size in _GENERATIONS for device_id in ids}


@dataclass(slots=True)
class GaudiReading:
    """The result of one discovery, while it is made."""

    cards: list[GaudiCard] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def functions_of(roots: Roots) -> dict[str, Path]:
    """Return the folder of each PCI function that the kernel driver drives, by address."""
    folder = Path(roots.sys, "bus/pci/drivers/habanalabs")
    found = {}
    for name in pci.entries_of(folder):
        address = _address(name)
        if address is not None:
            found[address] = folder / name
    return dict(sorted(found.items()))


def read_cards(roots: Roots) -> GaudiReading:
    """Return every accelerator that a container can open, and a problem for each that it can't."""
    reading = GaudiReading()
    others = _numbers_by_address(roots)
    for address, folder in functions_of(roots).items():
        number, place = _number_below(folder / "accel"), folder
        if number is None and address in others:
            number, place = others[address]
        module = _decimal(folder / "module_id", place / "module_id")
        if number is None or module is None:
            missing = "number below /dev/accel" if number is None else "module_id"
            text = f"the accelerator has no {missing}: it is left out"
            reading.problems.append(Problem("hardware.fact-unreadable", address, text))
            continue
        card = _card(address, folder, place, number, module)
        reading.cards.append(card)
        if card.is_healthy is False:
            text = f"the kernel driver reports {card.status!r}, not {_OPERATIONAL!r}: it is published as not healthy"
            reading.problems.append(Problem("hardware.not-operational", address, text))
    return reading


def _card(address: str, folder: Path, place: Path, number: int, module: int) -> GaudiCard:
    device_id = pci.read_hex(folder / "device") or None
    model, memory = _MODELS.get(device_id or 0, (None, None))
    verbs = next((name for name in pci.entries_of(folder / "infiniband_verbs") if _VERBS.fullmatch(name)), "")
    status = (pci.read_text(folder / "status") or pci.read_text(place / "status") or "").lower()
    return GaudiCard(
        uuid=address,
        pci_address=address,
        minor=number,
        memory_bytes=memory,
        product_name=f"Intel {model}" if model else None,
        numa_node=pci.read_numa(folder),
        pcie_root=pci.pcie_root_above(folder),
        pci_id=device_id << 16 | GAUDI.pci_vendor if device_id else None,
        nodes=(f"accel/accel{number}", f"accel/accel_controlD{number}"),
        device_id=device_id,
        model=model,
        module_id=module,
        verbs=verbs,
        status=status if _WORD.fullmatch(status) else "unknown" if status else "",
    )


def _numbers_by_address(roots: Roots) -> dict[str, tuple[int, Path]]:
    """Return, by PCI address, the number and the folder of each accelerator that its function's folder does not show.

    Older drivers put them among the virtual devices; the class shows those, too. A file has their PCI address.
    """
    found: dict[str, tuple[int, Path]] = {}
    for below in ("devices/virtual/accel", "class/accel"):
        for number, place in _accels(Path(roots.sys, below)):
            address = _address(pci.read_text(place / "pci_addr") or "")
            if address is not None:
                found.setdefault(address, (number, place))
    return found


def _accels(folder: Path) -> Iterator[tuple[int, Path]]:
    for name in pci.entries_of(folder):
        number = _ACCEL.fullmatch(name)
        if number:
            yield int(number[1]), folder / name / "device"
            yield int(number[1]), folder / name  # the class links to the PCI function itself


def _number_below(folder: Path) -> int | None:
    names = (_ACCEL.fullmatch(name) for name in pci.entries_of(folder))
    return next((int(found[1]) for found in names if found), None)


def _decimal(*paths: Path) -> int | None:
    texts = (pci.read_text(path) or "" for path in paths)
    return next((int(text) for text in texts if text.isascii() and text.isdigit() and len(text) <= 4), None)


def _address(text: str) -> str | None:
    try:
        return normal_pci_address(text)
    except ValueError:
        return None


# The table of attributes and capacities of Gaudi accelerators, in the domain of their driver.

_OF_ITS_DRIVER = ("healthy", "hasVerbs")  # not known of a card that a virtual machine has


def _row(
    name: str, kind: ValueKind, meaning: str, read: Callable[[GaudiCard], Fact], owner: Owner = Owner.OURS
) -> Published:
    types = ALL if name in _OF_ITS_DRIVER else EVERY
    return Published(name, kind, meaning, types, of_gpu(GaudiCard, read), owner=owner, since="0.2.0")


def _id(card: GaudiCard) -> str | None:
    return None if card.device_id is None else f"0x{card.device_id:04x}"


GAUDI_ROWS: tuple[Published, ...] = (
    _row(
        "model",
        ValueKind.STRING,
        "Model, such as `Gaudi2`; for a device id that our table lacks, the id itself.",
        lambda card: card.model or _id(card),
        Owner.VENDOR,
    ),
    _row(
        "healthy",
        ValueKind.BOOL,
        "Whether the kernel driver reports the card as operational; absent where it reports no status.",
        lambda card: card.is_healthy,
        Owner.VENDOR,
    ),
    Published(
        "serial",
        ValueKind.STRING,
        "Always `Unknown`: no file of the kernel driver shows the serial number.",
        EVERY,
        lambda _: "Unknown",
        since="0.3.0",
    ),
    PCI_ROOT,
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    Published(
        "type",
        ValueKind.STRING,
        "`gaudi`, or `vfio` for a card for a virtual machine.",
        EVERY,
        lambda found: found.type.value if found.is_passed else "gaudi",
        owner=Owner.OURS,
        since="0.2.0",
    ),
    *PASSED,
    _row("pciId", ValueKind.STRING, "PCI device id, such as `0x1020`.", _id),
    _row(
        "moduleID",
        ValueKind.INT,
        "Slot of the card on its board, on which the ports of its network depend.",
        lambda card: card.module_id,
    ),
    _row(
        "hasVerbs",
        ValueKind.BOOL,
        "Whether the card has an InfiniBand device, which its network driver creates.",
        lambda card: bool(card.verbs),
    ),
    _row(
        "memoryIsNominal",
        ValueKind.BOOL,
        "True where memory is that of the model, because no file reports the card's own.",
        lambda card: True if card.memory_bytes else None,
    ),
    Published(
        "driverVersion",
        ValueKind.VERSION,
        "Version of the kernel driver, its first three numbers; absent where it reports none.",
        ALL,
        lambda found: found.driver_version,
        owner=Owner.OURS,
        since="0.2.0",
    ),
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "Memory of the model (see memoryIsNominal). Absent for models that our table lacks.",
        EVERY,
        device_memory,
        unit="bytes",
        owner=Owner.OURS,
        since="0.2.0",
    ),
)


# Edits for containers with Gaudi accelerators: nodes, variables that name all of a claim's cards, and the hook.

_HOOKS = ("/usr/bin/habana-container-hook", "/usr/local/habana/bin/habana-container-hook")
_NETWORK = "/etc/habanalabs/gaudinet.json"


def device_edits(card: GaudiCard, roots: Roots) -> Edits:
    """Return the nodes of one card. Raises: HardwareError("hardware.node-missing", retry LATER)."""
    verbs = (f"infiniband/{card.verbs}",) if card.verbs else ()
    return edits_of_nodes((*card.nodes, *verbs), roots)


def claim_edits(cards: Sequence[GaudiCard], roots: Roots) -> Edits:
    """Return what all cards of a claim need together."""
    cards = sorted(cards, key=lambda card: card.minor)
    lists = {
        "HABANA_VISIBLE_DEVICES": [str(card.minor) for card in cards],
        "HABANA_VISIBLE_MODULES": [str(card.module_id) for card in cards],
        "HL_VISIBLE_DEVICES": [f"/dev/accel/accel{card.minor}" for card in cards],
    }
    env = tuple(f"{name}={','.join(values)}" for name, values in lists.items())
    hook = hook_path(roots)
    hooks = (Hook(hook, (hook,), name="createRuntime"),) if hook else ()
    mounts = (Mount(_NETWORK, _NETWORK),) if _is_on_host(_NETWORK, roots) else ()
    return merge((Edits(env=env, hooks=hooks, mounts=mounts),))


def hook_path(roots: Roots) -> str | None:
    """Return the path of the hook's program on the host, or None where there is none that can be run."""
    return next((path for path in _HOOKS if os.access(f"{roots.driver_mount.rstrip('/')}{path}", os.X_OK)), None)


def _is_on_host(path: str, roots: Roots) -> bool:
    return os.path.isfile(f"{roots.driver_mount.rstrip('/')}{path}")  # noqa: PTH113 - does not raise


# Gaudi accelerators behind the hardware port.


class GaudiHardware:
    """The accelerators of this node.

    Args:
        roots: where the node's trees are.
    """

    vendor = "gaudi"

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def is_present(self) -> bool:
        """Return whether there is an accelerator that the kernel driver drives, or one on the bus."""
        return bool(functions_of(self._roots) or on_bus(self._roots, GAUDI))

    def discover(self) -> Facts:
        """Read everything and return it."""
        reading = read_cards(self._roots)
        undriven = pci.undriven(self._roots, GAUDI, DRIVERS)
        version = semantic_version(pci.read_text(f"{self._roots.sys}/module/habanalabs/version"))
        problems = (*reading.problems, *undriven)
        return Facts(self.vendor, tuple(reading.cards), driver_version=version, problems=problems)

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else: here its result, which is cheap."""
        nodes = tuple(pci.entries_of(Path(self._roots.dev, "accel")))
        return Fingerprint((self.discover(), nodes, hook_path(self._roots)))

    def common_edits(self) -> Edits:
        """Return no edits: a container needs nothing but the nodes of its own cards."""
        return Edits()

    def claim_edits(self, gpus: Sequence[GpuFacts]) -> Edits:
        """Return what the cards of a claim need together: the variables that list them, and the hook."""
        return claim_edits([gpu for gpu in gpus if isinstance(gpu, GaudiCard)], self._roots)

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:  # noqa: ARG002 - there are none
        """Return the nodes of one card. Raises: HardwareError("hardware.node-missing", "hardware.gpu-lost")."""
        if not isinstance(gpu, GaudiCard):
            raise HardwareError("gpu-lost", f"{gpu.pci_address} is not a Gaudi accelerator", retry=Retry.NEVER)
        return device_edits(gpu, self._roots)

    def edit_problems(self) -> tuple[str, ...]:
        """Return what the edits leave out: the hook, if its program is not on the host."""
        if not self.is_present() or hook_path(self._roots):
            return ()
        return ("habana-container-hook is not on the host: containers do not get the cards' network interfaces",)

    def close(self) -> None:
        """Do nothing: no library and no device node is held."""


# Gaudi accelerators for virtual machines: what the PCI bus shows of one without a host driver.


def with_pci_facts(card: GpuFacts, roots: Roots) -> GpuFacts:  # noqa: ARG001 - the numbers alone tell something here
    """Return the facts of a function, completed by what its PCI numbers show."""
    if not isinstance(card, GaudiCard) or card.pci_id is None:
        return card
    return replace(card, device_id=card.pci_id >> 16)


# What is declared: classes, the page of its names, and the vendor.


_CLASS = VendorClass(
    "gaudi.intel.com",
    notes="""\
Any Gaudi accelerator, unless its kernel driver reports that it is not operational.

The name is that of Intel's own driver, so that claims written for it work unchanged.
""",
    expression=(
        'device.driver == "gaudi.intel.com" && device.attributes["gaudi.intel.com"].?healthy.orValue(true) != false '
        '&& device.attributes["gaudi.intel.com"].type != "vfio"'
    ),
    extended_resource="intel.com/gaudi",
)
_PASSED_CLASS = VendorClass(
    "gaudi-vfio.intel.com",
    notes="""\
A Gaudi accelerator for a virtual machine: bound to a VFIO driver when the claim is prepared, given back when it ends.

Only the cards that an administrator names (the chart's passthrough.config) are offered; the class exists where there
are any. Claims for it are admitted in namespaces with the label gaudi.intel.com/passthrough=true, because whoever has
the whole PCI function can write its firmware. Intel's own driver has no such class (docs/kubevirt.md).
""",
    expression='device.driver == "gaudi.intel.com" && device.attributes["gaudi.intel.com"].type == "vfio"',
)


VENDOR = Vendor(
    title="Gaudi",
    open=GaudiHardware,
    gpu=GaudiCard,
    rows=GAUDI_ROWS,
    page=ReferencePage("gaudi.md"),
    generated_classes=(_CLASS, _PASSED_CLASS),
    passthrough=PassthroughTerms(with_pci_facts, has_api_device=True),
    # Source: HabanaAI's device plugin for Kubernetes (the resource, the socket's name).
    device_plugin=DevicePluginSigns(("habana.ai/",), "habanalabs.sock"),
)
