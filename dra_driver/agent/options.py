"""Options: the agent's flags, checked.

Folders are absolute, because the kubelet and the container runtime get their paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.agent.status.options import StatusOptions, parse_address
from dra_driver.hardware.choose import roots_of
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.inventory.mig.geometry_rules import GeometryRule, read_rules
from dra_driver.model.errors import UsageError
from dra_driver.model.names import check_driver_name, check_node_name, check_pod_uid, check_pool_name, is_dns_label
from dra_driver.model.sharing import Tenants
from dra_driver.model.vendors import registered, registered_or_default
from dra_driver.validation.result import ValidationLevel
from dra_driver.validation.setting import NO_VALIDATION, ValidationSetting, read_setting

MAX_INTERVAL_SECONDS = 60
_BY_USE = frozenset([ValidationLevel.COMPUTE, ValidationLevel.THOROUGH])


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """How the GPUs are metered."""

    interval_s: float
    with_profiling: bool
    has_common_names: bool
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
