"""The agent's sharing configuration: a YAML file as `SharingRules`.

In: a path, and a function that reads a `sharing` section (the one that also reads those of claims). Out: rules, or one
InputError with every fault, its line and its path. A file of NVIDIA's device plugin (`version: v1` with `sharing`) is
accepted unchanged. The format is described in docs/sharing.md. Importing this module costs megabytes of memory, as
`sections` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails

from dra_driver.base.flags import DEFAULT_VENDOR, VENDORS
from dra_driver.base.names import is_dns_label, normal_pci_address
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.text.sections import MAX_FAULTS, Section, Text, described, fault, read_strictly, wrong
from dra_driver.base.wire import (
    DeviceType,
    Interval,
    MpsSettings,
    ShareMode,
    SharingSettings,
    Strategy,
    Tenants,
    TimeSlicingSettings,
    strategy_of,
)
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.devices.offering import ALL_GPUS, PassthroughRule, PassthroughRules
from dra_driver.node.devices.rules import MAX_REPLICAS, DeviceMatch, Portion, SharingRule, SharingRules

# The configuration file of NVIDIA's device plugin, read for its sharing settings.

VERSION = "v1"
MAX_RESOURCES = 64
_RESOURCE = r"(nvidia\.com/)?(gpu|mig-(?P<profile>[0-9]+(c\.[0-9]+)?g\.[0-9]+gb[.a-z]*))(\.shared)?"
_ID = re.compile(r"[0-9]{1,3}(:[0-9]{1,2})?|(GPU|MIG)-[0-9A-Za-z/-]{1,60}")
_Devices = tuple[tuple[str, ...], int | None]


def _devices(value: object) -> _Devices:
    if value == "all":
        return (), None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return (), value
    if not isinstance(value, list) or not value:
        raise wrong(f"expected all, a number of devices, or a list of indices and UUIDs, got {described(value)}")
    if unknown := [index for index, device in enumerate(value) if not _ID.fullmatch(str(device))][: MAX_FAULTS + 1]:
        expected = "expected an index (0, 0:1) or a UUID"
        faults = [fault(f"{expected}, got {described(value[index])}", index) for index in unknown]
        raise ValidationError.from_exception_data("devices", faults)
    return tuple(map(str, value)), None


class _ResourceSection(Section):
    name: str = Field(pattern=f"^{_RESOURCE}$", description="nvidia.com/gpu or nvidia.com/mig-PROFILE")
    replicas: int = Field(ge=1, le=MAX_REPLICAS)
    rename: Text = ""
    devices: Annotated[_Devices, PlainValidator(_devices)] = ((), None)

    def rule(self, path: str, settings: SharingSettings, gpus: tuple[DeviceType, ...]) -> SharingRule:
        """Return the resource as a rule; as in the device plugin, a single replica is the whole device."""
        found = re.fullmatch(_RESOURCE, self.name)
        profile = found["profile"] if found else None
        ids, first = self.devices
        match = DeviceMatch(
            types=(DeviceType.MIG,) if profile else gpus, profiles=(profile,) if profile else (), ids=ids, first=first
        )
        title = f"{path} ({self.name})"
        if self.replicas == 1:
            return SharingRule(title, match)
        return SharingRule(title, match, ShareMode.REPLICAS, self.replicas, None, settings)


class _WaySection(Section):
    fail_requests_greater_than_one: bool = False
    rename_by_default: bool = False
    resources: list[_ResourceSection] = Field([], max_length=MAX_RESOURCES)

    def notes(self, path: str) -> Iterator[str]:
        """Yield what has no effect in a DRA driver."""
        if self.fail_requests_greater_than_one:
            yield f"{path}.failRequestsGreaterThanOne has no effect here: a request for two shares gets two shares"
        if self.rename_by_default:
            yield f"{path}.renameByDefault has no effect here: shares have a device type of their own"
        for number, resource in enumerate(self.resources):
            if resource.rename:
                name = f"{path}.resources[{number}].rename"
                yield f"{name} has no effect here: device classes name the kinds of shares"


class _SharingSection(Section):
    time_slicing: _WaySection | None = None
    mps: _WaySection | None = None

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault for a second way of sharing."""
        if {"timeSlicing", "mps"} <= self._given:
            yield fault("does not go with timeSlicing: a device can only be shared in one way", "mps")


class DevicePluginFile(Section):
    """The whole file; what concerns the device plugin alone may be anything."""

    version: Literal["v1"]
    flags: Any = None
    resources: Any = None
    imex: Any = None
    sharing: _SharingSection = _SharingSection()

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault if the file can't say what separated tenants need."""
        resources = self.sharing.mps.resources if self.sharing.mps else []
        if self._context.tenants is Tenants.NAMESPACE and any(resource.replicas > 1 for resource in resources):
            needed = "which mps.tenants=namespace requires: write a file of version rules/v1"
            yield fault(f"mps can't name namespaces, {needed}", "sharing")

    def sharing_rules(self) -> SharingRules:
        """Return the rules in their order, and what has no effect."""
        is_single = isinstance(self.flags, dict) and self.flags.get("migStrategy") == "single"
        gpus = (DeviceType.GPU, DeviceType.MIG) if is_single else (DeviceType.GPU,)
        ways: tuple[tuple[str, _WaySection | None, SharingSettings], ...] = (
            ("timeSlicing", self.sharing.time_slicing, TimeSlicingSettings()),
            ("mps", self.sharing.mps, MpsSettings(multi_user=True)),  # its pods' users are not known in advance
        )
        rules = [
            resource.rule(f"sharing.{way}.resources[{number}]", settings, gpus)
            for way, section, settings in ways
            for number, resource in enumerate(section.resources if section else ())
        ]
        notes = [note for way, section, _ in ways if section for note in section.notes(f"sharing.{way}")]
        return SharingRules(tuple(rules), notes=tuple(notes))


MAX_RULES = 256
MAX_NAMESPACES = 256
MIB = 1 << 20

ReadSettings = Callable[[object], SharingSettings]
"""Read a `sharing` section. Raises: ValidationError with its faults."""


@dataclass(frozen=True, slots=True)
class FileContext:
    """What a file is read with: the reader of `sharing` sections, and whose claims may share one MPS daemon."""

    read_settings: ReadSettings
    tenants: Tenants


def read_rules(path: Path, read_settings: ReadSettings, tenants: Tenants = Tenants.ANY) -> SharingRules:
    """Read the file. With `tenants` NAMESPACE each rule with MPS has to name the namespaces that it serves.

    Raises: InputError("input.sharing-config") with every fault; "input.unreadable", "input.too-large",
    "input.not-yaml".
    """
    context = FileContext(read_settings, tenants)
    file = read_strictly(path, _model_of, "sharing-config", "sharing configuration", context=context)
    return replace(file.sharing_rules(), tenants=tenants)


def _model_of(content: object) -> type[_SharingFile | DevicePluginFile]:
    is_device_plugin = isinstance(content, dict) and content.get("version") == VERSION
    return DevicePluginFile if is_device_plugin else _SharingFile


def _vendor(name: str) -> str:
    able = [vendor.name for vendor in VENDORS if load_vendor(vendor.name).sharing]
    if name not in able:
        raise wrong(f"expected one of {', '.join(able)}, got {described(name)}")
    return name


class _MatchSection(Section):
    vendors: list[Annotated[str, AfterValidator(_vendor)]] = Field(default=[])
    nodes: list[Text] = Field(default=[])
    node_labels: dict[str, str] = Field(default={}, description="a string (numbers, true and false in quotes)")
    devices: list[Text] = Field(default=[])
    products: list[Text] = Field(default=[])
    profiles: list[Text] = Field(default=[])
    types: list[Literal["gpu", "mig"]] = Field(default=[], description="gpu or mig")

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault if no device can meet the conditions."""
        if self.profiles and "gpu" in self.types:
            yield fault("a whole GPU has no MIG profile: leave `gpu` out of types", "profiles")

    def match(self) -> DeviceMatch:
        """Return the conditions; a rule that names no vendor is for devices of the default one."""
        return DeviceMatch(
            vendors=tuple(self.vendors) or (DEFAULT_VENDOR.name,),
            nodes=tuple(self.nodes),
            labels=tuple(self.node_labels.items()),
            devices=tuple(self.devices),
            products=tuple(self.products),
            profiles=tuple(self.profiles),
            types=(DeviceType.MIG,) if self.profiles else tuple(map(DeviceType, self.types)),
        )


class _PortionSection(Section):
    """How much one share takes by default, and the amounts that a claim may request."""

    UNIT: ClassVar[int]
    default: int | None
    min: int | None
    step: int | None
    max: int | None

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield the faults of amounts that don't go together."""
        portion = self.portion()
        if "default" not in self._given:
            yield fault("missing, expected what a share takes if its claim requests no amount", "default")
        elif portion.default < portion.minimum:
            yield fault("is less than min", "default")
        elif (portion.default - portion.minimum) % portion.step:
            yield fault("is not min plus a multiple of step, to which amounts are rounded up", "default")
        if self.default is not None and self.max is not None and self.default > self.max:
            yield fault("is more than max", "default")
        if self.max is not None and self.max < portion.minimum:
            yield fault("is less than min", "max")

    def portion(self) -> Portion:
        """Return the amounts, also those that are left out."""
        step = self.step or self.UNIT
        minimum = self.min or step
        return Portion(self.default or minimum, minimum, step, self.max)


def _memory(value: object) -> int:
    try:
        amount = Quantity.parse(str(value)).value if isinstance(value, (str, int)) else 0
    except QuantityError:
        amount = 0
    if isinstance(value, bool) or not isinstance(amount, int) or amount < MIB or amount % MIB:
        raise wrong(f"expected an amount of memory in whole MiB, such as 10Gi, got {described(value)}")
    return amount


_Memory = Annotated[int, PlainValidator(_memory)]


class _MemorySection(_PortionSection):
    UNIT = MIB
    default: _Memory | None = None
    min: _Memory | None = None
    step: _Memory | None = None
    max: _Memory | None = None


class _ComputeSection(_PortionSection):
    """The same in percent of the multiprocessors."""

    UNIT = 1
    default: int | None = Field(None, ge=1, le=100)
    min: int | None = Field(None, ge=1, le=100)
    step: int | None = Field(None, ge=1, le=100)
    max: int | None = Field(None, ge=1, le=100)


def _namespace(name: str) -> str:
    if not is_dns_label(name):
        raise wrong(f"expected the name of a namespace, got {described(name)}")
    return name


def _settings(section: object, info: ValidationInfo[FileContext]) -> SharingSettings:
    return info.context.read_settings(section)


class _RuleSection(Section):
    name: Text = ""
    match: _MatchSection = _MatchSection()
    exclusive: bool = False
    replicas: int | None = Field(None, ge=2, le=MAX_REPLICAS)
    memory: _MemorySection | None = None
    compute: _ComputeSection | None = None
    sharing: Annotated[SharingSettings | None, PlainValidator(_settings)] = None
    across_namespaces: bool | None = None
    namespaces: list[Annotated[str, AfterValidator(_namespace)]] | None = Field(None, max_length=MAX_NAMESPACES)
    enforcement: Literal["hard"] | None = Field(None, description="hard; anything else follows from sharing")

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield the faults of settings that don't go together, or not with the devices that the rule is for."""
        yield from self._faults_of_ways()
        yield from self._faults_of_enforcement()
        yield from self._faults_of_vendors()
        if self.sharing is not None or "sharing" not in self._given:
            yield from self._faults_of_settings()
            yield from self._faults_of_namespaces(self._context.tenants)

    def rule(self, number: int) -> SharingRule:
        """Return the section as a rule; `number` is its place in the file."""
        portions = {ShareMode.MEMORY: self.memory, ShareMode.COMPUTE: self.compute}
        mode = next((mode for mode, section in portions.items() if section), None)
        section = portions[mode] if mode else None
        settings = self.sharing
        if isinstance(settings, MpsSettings):
            settings = replace(settings, across_namespaces=bool(self.across_namespaces))
        return SharingRule(
            self.name or f"rule {number}",
            self.match.match(),
            mode or (ShareMode.REPLICAS if self.replicas else None),
            self.replicas,
            section.portion() if section else None,
            settings,
            self.enforcement == "hard",
            tuple(self.namespaces or ()),
        )

    def _faults_of_ways(self) -> Iterator[InitErrorDetails]:
        ways = [mode for mode in (ShareMode.MEMORY, ShareMode.COMPUTE, ShareMode.REPLICAS) if mode in self._given]
        if {ShareMode.MEMORY, ShareMode.COMPUTE} <= set(ways):
            yield fault("shares are counted in memory or in compute, not in both", "compute")
        if self.exclusive and ways:
            yield fault(f"does not go with {ways[0]}", "exclusive")
        if self.exclusive and self.sharing:
            yield fault("does not go with exclusive: a claim decides how its own device is shared", "sharing")
        if not self.exclusive and not ways:
            yield fault("missing, expected replicas, memory, compute or `exclusive: true`", "replicas")

    def _faults_of_enforcement(self) -> Iterator[InitErrorDetails]:
        """Yield a fault where the driver can't limit memory; any other enforcement follows from `sharing`."""
        if self.enforcement is None:
            return
        if self.exclusive or "compute" in self._given:
            message = "only goes with replicas and memory, because memory is all that the driver can limit"
            yield fault(message, "enforcement")
        elif self.match.match().types == (DeviceType.MIG,):
            message = "the driver limits memory of whole GPUs only; the hardware separates partitions"
            yield fault(message, "enforcement")

    def _faults_of_settings(self) -> Iterator[InitErrorDetails]:
        is_sliced = isinstance(self.sharing, TimeSlicingSettings) and self.sharing.interval is not Interval.DEFAULT
        if is_sliced and self.match.match().types == (DeviceType.MIG,):
            yield fault("a MIG device has no interval of its own", "sharing", "timeSlicingConfig", "interval")
        if self.across_namespaces is not None and not isinstance(self.sharing, MpsSettings):
            yield fault("only goes with strategy MPS", "acrossNamespaces")

    def _faults_of_vendors(self) -> Iterator[InitErrorDetails]:
        """Yield what the devices of a vendor that the rule applies to can't do."""
        for vendor in map(load_vendor, self.match.match().vendors):
            known = vendor.sharing.strategies if vendor.sharing else ()
            if self.sharing is not None and strategy_of(self.sharing) not in known:
                yield fault(f"{vendor.title}'s GPUs have no strategy {strategy_of(self.sharing)}", "sharing")
            if "compute" in self._given and Strategy.MPS not in known:
                yield fault(f"{vendor.title}'s GPUs are not shared by percent of the multiprocessors", "compute")

    def _faults_of_namespaces(self, tenants: Tenants) -> Iterator[InitErrorDetails]:
        """Yield the faults of `namespaces`, which goes only with MPS, and only if tenants are separated."""
        namespaces = self.namespaces or []
        for index, name in enumerate(namespaces):
            if name in namespaces[:index]:
                yield fault(f"{name} is listed twice", "namespaces", index)
        is_separate = isinstance(self.sharing, MpsSettings) and tenants is Tenants.NAMESPACE
        if "namespaces" in self._given and not is_separate:
            message = "only goes with strategy MPS, and with mps.tenants=namespace (--mps-tenants)"
            yield fault(message, "namespaces")
        if is_separate and ("namespaces" not in self._given or self.namespaces == []):
            message = "missing: with mps.tenants=namespace a rule with MPS names the namespaces it serves"
            yield fault(message, "namespaces")
        if is_separate and self.across_namespaces:
            yield fault("does not go with mps.tenants=namespace, which keeps namespaces apart", "acrossNamespaces")


class _SharingFile(Section):
    version: Literal["rules/v1"] = Field(description=f"'rules/v1', or {VERSION!r} for a file of NVIDIA's device plugin")
    rules: list[_RuleSection] = Field(max_length=MAX_RULES, description="a list of rules")

    def sharing_rules(self) -> SharingRules:
        """Return the rules in their order."""
        return SharingRules(tuple(section.rule(number) for number, section in enumerate(self.rules, 1)))


# The file of GPUs that virtual machines may have

RULES_FILE_MAX_RULES, MAX_NAMES = 256, 256
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
    gpus: list[_GpusSection] = Field(max_length=RULES_FILE_MAX_RULES, description="a list of rules")
