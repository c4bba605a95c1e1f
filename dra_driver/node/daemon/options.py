"""Options: the agent's flags, checked.

Folders are absolute, because the kubelet and the container runtime get their paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import UsageError
from dra_driver.base.flags import DEFAULT_VENDOR, VENDORS, RegisteredVendor, registered, registered_or_default
from dra_driver.base.names import check_driver_name, check_node_name, check_pod_uid, check_pool_name, is_dns_label
from dra_driver.base.wire import Tenants
from dra_driver.hardware.choose import AUTO, roots_of, vendors_listed
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.devices.geometry import GeometryRule, read_rules
from dra_driver.node.health.validation import NO_VALIDATION, ValidationLevel, ValidationSetting, read_setting

MAX_INTERVAL_SECONDS = 60
_BY_USE = frozenset([ValidationLevel.COMPUTE, ValidationLevel.THOROUGH])


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """How the GPUs are metered."""

    interval_s: float
    with_profiling: bool
    has_common_names: bool
    has_former_names: bool
    counters: Path | None
    hostname_label: str
    repeats_gpu: bool


@dataclass(frozen=True, slots=True)
class Options:
    """The agent's flags, checked."""

    node: str
    driver: str
    kubeconfig: str | None
    cdi_root: Path
    registrar_dir: Path
    plugins_dir: Path
    device_plugins_dir: Path | None
    pod_uid: str
    status: StatusOptions
    hardware: str
    roots: Roots
    vendor: str
    waits_for_bus: bool  # whether no code of the vendor is loaded until one of its PCI functions is there
    is_mig_dynamic: bool
    has_all_profiles: bool
    mig_geometry: tuple[GeometryRule, ...]
    mig_config: Path | None
    lists_claims: bool
    has_metadata: bool = False
    writes_claim_status: bool = False
    writes_node_condition: bool = False
    feature_file: Path | None = None
    has_feature_object: bool = False
    sharing_config: Path | None = None
    mps_tenants: Tenants = Tenants.ANY
    is_health_watched: bool = True
    health_policy: Path | None = None
    validation: ValidationSetting = NO_VALIDATION
    telemetry: TelemetryOptions | None = None
    lease_namespace: str = "dra-driver"
    remediation: str = "off"
    remediation_policy: Path | None = None
    passthrough: Path | None = None
    has_imex_channel: bool = False

    @property
    def data_dir(self) -> Path:
        """Return the plugin's own folder, which has its sockets, ledger and locks."""
        return self.plugins_dir / self.driver

    @property
    def kubelet_dir(self) -> Path:
        """Return the kubelet's folder, which contains the folder of the plugins."""
        return self.plugins_dir.parent

    @property
    def pod_resources(self) -> Path:
        """Return the path of the kubelet's PodResources socket."""
        return self.kubelet_dir / "pod-resources/kubelet.sock"


def _status(values: Mapping[str, str]) -> StatusOptions:
    """Return where metrics and probes are served, after checks. Raises: UsageError."""
    for flag in ("--metrics-address", "--probe-address"):
        if address := values[flag[2:].replace("-", "_")]:
            parse_address(address, flag)
    is_reviewed, folder = values["metrics_readers"] == "authorized", values["metrics_certificate"]
    if is_reviewed and not folder:
        raise UsageError(
            "metrics-readers",
            "--metrics-readers=authorized without --metrics-certificate: tokens would be sent in the clear",
            hint="give the folder of a certificate (docs/telemetry.md)",
        )
    certificate = Path(folder).absolute() if folder else None
    return StatusOptions(values["metrics_address"], values["probe_address"], certificate, is_reviewed)


def _telemetry(values: Mapping[str, str]) -> TelemetryOptions | None:
    """Return how to meter; None if metering is off or nothing is served. Raises: UsageError."""
    text = values["telemetry_interval"]
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_INTERVAL_SECONDS):
        raise UsageError("telemetry-interval", f"--telemetry-interval={text!r:.40} is not a number of seconds, 1 to 60")
    if values["telemetry"] == "off" or not values["metrics_address"]:
        return None
    return TelemetryOptions(
        interval_s=float(text),
        with_profiling=values["telemetry"] == "full",
        has_common_names=values["dcgm_names"] == "true",
        has_former_names=values["telemetry_former_names"] == "true",
        counters=Path(values["telemetry_counters"]).absolute() if values["telemetry_counters"] else None,
        hostname_label=values["telemetry_hostname_label"],
        repeats_gpu=values["telemetry_repeat_gpu"] == "true",
    )


def _remediation(values: Mapping[str, str]) -> str:
    """Return the mode of remediation if the other options allow it.

    Raises: UsageError("usage.remediation").
    """
    mode = values["remediation"]
    if mode != "off" and values["health"] == "off":
        text = f"--remediation={mode} acts on faults, but --health=off finds none"
        raise UsageError("remediation", text, hint="leave --health on (docs/health.md)")
    return mode


def _node_condition(values: Mapping[str, str]) -> bool:
    """Return whether the node's condition is written. Raises: UsageError("usage.node-condition")."""
    is_on = values["node_condition"] == "on"
    if is_on and values["health"] == "off":
        text = "--node-condition=on reports faults, but --health=off finds none"
        raise UsageError("node-condition", text, hint="leave --health on (docs/health.md)")
    return is_on


def _feature_file(values: Mapping[str, str]) -> Path | None:
    """Return the file for the node's labels, or None. Raises: UsageError("usage.feature-file")."""
    if values["node_labels"] != "file":
        return None
    path = Path(values["feature_file"])
    if not path.is_absolute() or path.name.startswith("."):
        message = f"--feature-file={values['feature_file']!r:.200} is not an absolute path, or its file is hidden"
        raise UsageError("feature-file", message, hint="leave it out to use the default")
    return path


def _namespace(text: str) -> str:
    """Return a namespace's name after checking it. Raises: UsageError("usage.namespace")."""
    if not is_dns_label(text):
        raise UsageError("namespace", f"--lease-namespace={text!r} is not a valid name of a namespace")
    return text


def _check_vendor(values: Mapping[str, str]) -> None:
    """Refuse options that the GPUs of the only vendor don't support. Raises: UsageError("usage.hardware")."""
    vendor = load_vendor(values["hardware"]) if registered(values["hardware"]) and asks_for_abilities(values) else None
    if vendor is None:
        return
    whose, validate, remediation = f"{vendor.title}'s GPUs", values["validate"], values["remediation"]
    if values["sharing_config"] and vendor.sharing is None:
        raise UsageError("hardware", f"--sharing-config: {whose} are not shared", hint="leave it out")
    if remediation != "off" and not vendor.is_reset:
        text = f"--remediation={remediation}: this driver can't reset {whose}"
        raise UsageError("hardware", text, hint="leave it out: faults are reported nevertheless")
    if read_setting(validate).level in _BY_USE and not vendor.is_tested:
        text = f"--validate={validate}: this driver has no test for {whose}"
        raise UsageError("hardware", text, hint="use 0, or a command of your own (docs/health.md)")


def asks_for_abilities(values: Mapping[str, str]) -> bool:
    """Return whether the flags ask for anything that not every vendor's GPUs can do."""
    is_tested = read_setting(values["validate"]).level not in {None, ValidationLevel.READING}
    return bool(values["sharing_config"]) or values["remediation"] != "off" or is_tested


def _validation(values: Mapping[str, str]) -> ValidationSetting:
    """Return how devices are tested. Raises: UsageError("usage.validate")."""
    setting = read_setting(values["validate"])
    if values["health"] == "off" and setting.level:
        raise UsageError("validate", f"--validate={values['validate']:.80} needs --health=on")
    return setting


def options_of(values: Mapping[str, str], *, waits_for_bus: bool = False) -> Options:
    """Return the options of one driver for the values of the flags. Raises: UsageError."""
    check_pool_name(check_node_name(values["node_name"]), check_driver_name(values["driver_name"]))
    _check_vendor(values)
    plugins = Path(values["device_plugins_directory_path"])
    return Options(
        node=check_node_name(values["node_name"]),
        driver=check_driver_name(values["driver_name"]),
        kubeconfig=values["kubeconfig"] or None,
        cdi_root=Path(values["cdi_root"]).absolute(),
        registrar_dir=Path(values["kubelet_registrar_directory_path"]).absolute(),
        plugins_dir=Path(values["kubelet_plugins_directory_path"]).absolute(),
        device_plugins_dir=plugins if values["device_plugin"] == "yield" else None,
        pod_uid=check_pod_uid(values["pod_uid"]),
        status=_status(values),
        hardware=values["hardware"],
        roots=roots_of(values),
        vendor=registered_or_default(values["hardware"]).name,
        waits_for_bus=waits_for_bus,
        is_mig_dynamic=values["mig"] == "dynamic",
        mig_geometry=read_rules(values["mig_geometry"], has_file=bool(values["mig_config"])),
        mig_config=Path(values["mig_config"]) if values["mig_config"] else None,
        lists_claims=values["takeover_list_claims"] == "true",
        has_metadata=values["device_metadata"] == "on",
        writes_claim_status=values["claim_status"] == "on",
        writes_node_condition=_node_condition(values),
        feature_file=_feature_file(values),
        has_feature_object=values["node_labels"] == "object",
        has_all_profiles=values["mig_profiles"] == "all",
        sharing_config=Path(values["sharing_config"]).absolute() if values["sharing_config"] else None,
        mps_tenants=Tenants(values["mps_tenants"]),
        is_health_watched=values["health"] == "on",
        health_policy=Path(values["health_policy"]).absolute() if values["health_policy"] else None,
        validation=_validation(values),
        telemetry=_telemetry(values),
        lease_namespace=_namespace(values["lease_namespace"]),
        remediation=_remediation(values),
        remediation_policy=Path(values["remediation_policy"]).absolute() if values["remediation_policy"] else None,
        has_imex_channel=values["imex_channel"] == "auto",
        passthrough=Path(values["passthrough"]).absolute() if values["passthrough"] else None,
    )


# Drivers: the options of each driver that this process runs, one for each vendor that the flags name.


def drivers_of(values: Mapping[str, str], *, is_named: bool) -> tuple[Options, ...]:
    """Return the options of each driver that the flags name; `is_named` is whether the driver's name was given.

    "auto" means every vendor of the registry, each as soon as its hardware is there; with a driver's name it means only
    the driver of the default vendor. Raises: UsageError.
    """
    choice = values["hardware"]
    if choice == AUTO and not is_named:
        return tuple(_of_vendor(values, vendor, is_optional=vendor is not DEFAULT_VENDOR) for vendor in VENDORS)
    if "," not in choice or choice.startswith("simulated:"):
        return (options_of(values),)
    if is_named:
        text = f"--driver-name names one driver, but --hardware={choice} has several"
        raise UsageError("driver-name", text, hint="leave --driver-name out: each vendor has its own")
    return tuple(_of_vendor(values, vendor, is_optional=False) for vendor in vendors_listed(choice))


def _of_vendor(values: Mapping[str, str], vendor: RegisteredVendor, *, is_optional: bool) -> Options:
    own = {**values, "hardware": vendor.name, "driver_name": vendor.driver}
    if vendor is not DEFAULT_VENDOR:
        own["node_labels"] = "off"  # only one driver may write the labels
    if asks_for_abilities(
        values
    ):  # an option that this vendor does not support is meant for another vendor of the process
        able = load_vendor(vendor.name)
        own["sharing_config"] = own["sharing_config"] if able.sharing else ""
        own["remediation"] = own["remediation"] if able.is_reset else "off"
        own["validate"] = own["validate"] if able.is_tested else "0"
    return options_of(own, waits_for_bus=is_optional)


# Status options: where metrics and probes are served, and to whom.

# Status options: where metrics and probes are served, and to whom.


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Where the pages are served, and who may read /metrics. An empty address means that the page is not served."""

    metrics_address: str = ""
    probe_address: str = ""
    certificate: Path | None = None  # folder of the certificate with which /metrics is served
    has_known_readers: bool = False  # whether the API server is asked who may scrape

    @property
    def is_served(self) -> bool:
        """Return whether any page is served."""
        return bool(self.metrics_address or self.probe_address)


def parse_address(text: str, flag: str = "--metrics-address") -> tuple[str, int]:
    """Return the host and port in `HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises: UsageError("usage.address")."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"{flag}={text!r} is not HOST:PORT", hint="for example 127.0.0.1:9400")
    return host.strip("[]"), int(port)
