"""The agent's sharing configuration: a YAML file as `SharingRules`.

In: a path, and a function that reads a `sharing` section (the one that also reads those of claims). Out: rules, or one
InputError with every fault, its line and its path. A file of NVIDIA's device plugin (`version: v1` with `sharing`) is
accepted unchanged. The format is described in docs/sharing.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dra_driver.documents.fields import Fields
from dra_driver.documents.strict_file import check_version, read_strictly
from dra_driver.hardware.vendors import load_vendor
from dra_driver.inventory.sharing.device_plugin_file import VERSION as DEVICE_PLUGIN_VERSION
from dra_driver.inventory.sharing.device_plugin_file import decode_device_plugin
from dra_driver.inventory.sharing.rules import MAX_REPLICAS, DeviceMatch, Portion, SharingRule, SharingRules
from dra_driver.model.names import is_dns_label
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.model.shares import DeviceType, ShareMode
from dra_driver.model.sharing import (
    Interval,
    MpsSettings,
    SharingSettings,
    Strategy,
    Tenants,
    TimeSlicingSettings,
    strategy_of,
)
from dra_driver.model.vendors import DEFAULT_VENDOR, VENDORS

VERSION = "rules/v1"
MAX_RULES = 256
MAX_NAMESPACES = 256
MIB = 1 << 20

ReadSettings = Callable[[object, str, list[str]], SharingSettings | None]
"""Read a `sharing` section at a path; append each fault to the list as `path: message`."""


def read_rules(path: Path, read_settings: ReadSettings, tenants: Tenants = Tenants.ANY) -> SharingRules:
    """Read the file. With `tenants` NAMESPACE each rule with MPS has to name the namespaces that it serves.

    Raises: InputError("input.sharing-config") with every fault; "input.unreadable", "input.too-large",
    "input.not-yaml".
    """

    def decode(root: Fields) -> SharingRules:
        if root.optional_text("version") == DEVICE_PLUGIN_VERSION:
            return _device_plugin_rules(root, tenants)
        check_version(root, VERSION, f", or {DEVICE_PLUGIN_VERSION!r} for a file of NVIDIA's device plugin")
        return SharingRules(_rules(root, read_settings, tenants))

    rules = read_strictly(path, decode, "sharing-config", "sharing configuration")
    return replace(rules, tenants=tenants)


def _device_plugin_rules(root: Fields, tenants: Tenants) -> SharingRules:
    rules = decode_device_plugin(root)
    if tenants is Tenants.NAMESPACE and any(isinstance(rule.settings, MpsSettings) for rule in rules.rules):
        message = f"mps can't name namespaces, which mps.tenants=namespace requires: write a file of version {VERSION}"
        root.fault("sharing", message)
    return rules


def _rules(root: Fields, read_settings: ReadSettings, tenants: Tenants) -> tuple[SharingRule, ...]:
    rows = root.rows("rules", maximum=MAX_RULES)
    if not root.has("rules"):
        root.fault("rules", "missing, expected a list of rules")
    return tuple(_rule(row, number, read_settings, tenants) for number, row in enumerate(rows, 1))


def _rule(row: Fields, number: int, read_settings: ReadSettings, tenants: Tenants) -> SharingRule:
    name = row.optional_text("name") or f"rule {number}"
    match = _match(row.section("match"))
    is_exclusive = row.optional_flag("exclusive") is True
    replicas = row.optional_integer("replicas", 2, MAX_REPLICAS)
    portions = {mode: _portion(row, mode) for mode in (ShareMode.MEMORY, ShareMode.COMPUTE) if row.has(mode.value)}
    ways = [*portions, *([ShareMode.REPLICAS] if row.has("replicas") else [])]
    if len(portions) > 1:
        row.fault("compute", "shares are counted in memory or in compute, not in both")
    if is_exclusive and ways:
        row.fault("exclusive", f"does not go with {ways[0]}")
    if not is_exclusive and not ways:
        row.fault("replicas", "missing, expected replicas, memory, compute or `exclusive: true`")
    settings = _settings(row, match, read_settings, is_exclusive=is_exclusive)
    _check_vendors(row, match, settings, has_compute=ShareMode.COMPUTE in portions)
    namespaces = _namespaces(row, settings, tenants)
    is_hard = _is_hard(row, match, limits_memory=not is_exclusive and ShareMode.COMPUTE not in portions)
    row.close()
    mode = None if is_exclusive or not ways else ways[0]
    return SharingRule(name, match, mode, replicas, portions.get(mode) if mode else None, settings, is_hard, namespaces)


def _namespaces(row: Fields, settings: SharingSettings | None, tenants: Tenants) -> tuple[str, ...]:
    """Read the namespaces that shares are offered to: only with MPS, and only if tenants are separated."""
    namespaces = row.texts("namespaces")
    if len(namespaces) > MAX_NAMESPACES:
        row.fault("namespaces", f"{len(namespaces)} entries, at most {MAX_NAMESPACES} are allowed")
    for index, namespace in enumerate(namespaces):
        if not is_dns_label(namespace):
            row.fault(f"namespaces[{index}]", f"expected the name of a namespace, got {namespace!r}")
        elif namespace in namespaces[:index]:
            row.fault(f"namespaces[{index}]", f"{namespace} is listed twice")
    is_mps, is_separate = isinstance(settings, MpsSettings), tenants is Tenants.NAMESPACE
    if row.has("namespaces") and not (is_mps and is_separate):
        row.fault("namespaces", "only goes with strategy MPS, and with mps.tenants=namespace (--mps-tenants)")
    if is_mps and is_separate and not namespaces:
        row.fault("namespaces", "missing: with mps.tenants=namespace a rule with MPS names the namespaces it serves")
    if isinstance(settings, MpsSettings) and settings.across_namespaces and is_separate:
        row.fault("acrossNamespaces", "does not go with mps.tenants=namespace, which keeps namespaces apart")
    return namespaces


def _check_vendors(row: Fields, match: DeviceMatch, settings: SharingSettings | None, *, has_compute: bool) -> None:
    """Report what the devices of a vendor that the rule applies to can't do."""
    for name in match.vendors:
        terms = load_vendor(name).sharing
        known = terms.strategies if terms else ()
        if settings is not None and strategy_of(settings) not in known:
            row.fault("sharing", f"{load_vendor(name).title}'s GPUs have no strategy {strategy_of(settings)}")
        if has_compute and Strategy.MPS not in known:
            row.fault("compute", f"{load_vendor(name).title}'s GPUs are not shared by percent of the multiprocessors")


def _vendors(section: Fields) -> tuple[str, ...]:
    """Read to which vendors' devices a rule applies; to those of the default vendor if the rule names none."""
    able = [one.name for one in VENDORS if load_vendor(one.name).sharing] if section.has("vendors") else []
    words = section.texts("vendors")
    for index, word in enumerate(words):
        if word not in able:
            section.fault(f"vendors[{index}]", f"expected one of {', '.join(able)}, got {word!r}")
    return tuple(word for word in words if word in able) or (DEFAULT_VENDOR.name,)


def _is_hard(row: Fields, match: DeviceMatch, *, limits_memory: bool) -> bool:
    """Read `enforcement`. Its only value is `hard`, because any other enforcement follows from `sharing`."""
    if row.optional_text("enforcement", pattern="hard", what="hard; anything else follows from sharing") is None:
        return False
    if not limits_memory:
        row.fault("enforcement", "only goes with replicas and memory, because memory is all that the driver can limit")
    elif match.types == (DeviceType.MIG,):
        row.fault("enforcement", "the driver limits memory of whole GPUs only; the hardware separates partitions")
    return True


def _match(section: Fields) -> DeviceMatch:
    labels = section.section("nodeLabels")
    types = section.texts("types")
    for index, word in enumerate(types):
        if word not in (DeviceType.GPU, DeviceType.MIG):
            section.fault(f"types[{index}]", f"expected gpu or mig, got {word!r}")
    match = DeviceMatch(
        vendors=_vendors(section),
        nodes=section.texts("nodes"),
        labels=tuple((key, _label(labels, key, value)) for key, value in labels.entries()),
        devices=section.texts("devices"),
        products=section.texts("products"),
        profiles=section.texts("profiles"),
        types=tuple(DeviceType(word) for word in types if word in (DeviceType.GPU, DeviceType.MIG)),
    )
    section.close()
    if match.profiles and DeviceType.GPU in match.types:
        section.fault("profiles", "a whole GPU has no MIG profile: leave `gpu` out of types")
    return replace(match, types=(DeviceType.MIG,)) if match.profiles else match


def _label(labels: Fields, key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    labels.fault(key, "expected a string; put numbers, true and false in quotes")
    return ""


def _portion(row: Fields, mode: ShareMode) -> Portion:
    """Read how much one share takes. Quantities are bytes of memory; percent are whole numbers."""
    section = row.section(mode.value)
    is_memory = mode is ShareMode.MEMORY
    values = {name: _amount(section, name, is_memory=is_memory) for name in ("default", "min", "step", "max")}
    if not section.has("default"):
        section.fault("default", "missing, expected what a share takes if its claim requests no amount")
    section.close()
    step = values["step"] or (MIB if is_memory else 1)
    minimum = values["min"] or step
    default, maximum = values["default"], values["max"]
    if default is not None:
        if default < minimum:
            section.fault("default", "is less than min")
        elif (default - minimum) % step:
            section.fault("default", "is not min plus a multiple of step, to which amounts are rounded up")
        if maximum is not None and default > maximum:
            section.fault("default", "is more than max")
    if maximum is not None and maximum < minimum:
        section.fault("max", "is less than min")
    return Portion(default or minimum, minimum, step, maximum)


def _amount(section: Fields, name: str, *, is_memory: bool) -> int | None:
    if not is_memory:
        return section.optional_integer(name, 1, 100)
    value = section.any(name)
    if value is None:
        return None
    try:
        amount = Quantity.parse(str(value)).value if isinstance(value, (str, int)) else 0
    except QuantityError:
        amount = 0
    if isinstance(value, bool) or not isinstance(amount, int) or amount < MIB or amount % MIB:
        section.fault(name, f"expected an amount of memory in whole MiB, such as 10Gi, got {value!r}")
        return None
    return amount


def _settings(
    row: Fields, match: DeviceMatch, read_settings: ReadSettings, *, is_exclusive: bool
) -> SharingSettings | None:
    across = row.optional_flag("acrossNamespaces")
    settings = read_settings(row.any("sharing"), f"{row.path}.sharing", row.faults) if row.has("sharing") else None
    if is_exclusive and settings is not None:
        row.fault("sharing", "does not go with exclusive: a claim decides how its own device is shared")
    has_interval = isinstance(settings, TimeSlicingSettings) and settings.interval is not Interval.DEFAULT
    if has_interval and match.types == (DeviceType.MIG,):
        row.fault("sharing.timeSlicingConfig.interval", "a MIG device has no interval of its own")
    if across is not None and not isinstance(settings, MpsSettings):
        row.fault("acrossNamespaces", "only goes with strategy MPS")
    if isinstance(settings, MpsSettings):
        return replace(settings, across_namespaces=bool(across))
    return settings
