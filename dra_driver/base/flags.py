"""Flags of the agent: one table with their defaults, meanings and choices.

It is read by the agent (argparse) and by the commands that read this node's hardware (click), so that
`dra-driver devices` and the agent can't disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra_driver.base.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser


# The registry of vendors: one row for each, with everything that is known of it before its folder is loaded.


@dataclass(frozen=True, slots=True)
class RegisteredVendor:
    """One vendor: its folder, its DRA driver, and the PCI numbers of its devices."""

    name: str
    driver: str
    pci_vendor: int
    pci_classes: tuple[int, ...]


VENDORS = (
    RegisteredVendor("nvidia", "gpu.nvidia.com", 0x10DE, (0x03,)),
    RegisteredVendor("amd", "gpu.amd.com", 0x1002, (0x03, 0x12)),
    RegisteredVendor("intel", "gpu.intel.com", 0x8086, (0x03,)),
    RegisteredVendor("gaudi", "gaudi.intel.com", 0x1DA3, (0x12,)),
)
DEFAULT_VENDOR = VENDORS[0]  # also the vendor of simulated machines


def registered_as(name: str) -> RegisteredVendor:
    """Return the vendor of a name. Raises: KeyError."""
    return {vendor.name: vendor for vendor in VENDORS}[name]


def registered(name: str) -> RegisteredVendor | None:
    """Return the vendor of a name, or None if there is no such vendor."""
    return next((vendor for vendor in VENDORS if vendor.name == name), None)


def registered_or_default(name: str) -> RegisteredVendor:
    """Return the vendor of a name; for a name that no vendor has (simulated hardware), the default vendor."""
    return registered(name) or DEFAULT_VENDOR


# One flag of a program: its name, its environment variable, its default; and how flags are read.


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `default` is shown in --help; commands that read this node's hardware have those with `is_hardware`."""

    name: str  # "--node-name"
    default: str
    meaning: str
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_hardware: bool = False

    @property
    def field(self) -> str:
        """Return the flag as a Python name, for example `node_name`."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that also sets the flag, for example `NODE_NAME`."""
        return self.field.upper()


def add_to(parser: ArgumentParser, flags: Iterable[Flag]) -> None:
    """Add flags to a parser, with their defaults and variables in --help; `resolve` reads what it found."""
    for flag in flags:
        default = f" (default {flag.default})" if flag.default else ""
        text = f"{flag.meaning}{default}; env {flag.variable}"
        parser.add_argument(flag.name, dest=flag.field, metavar=flag.metavar, help=text)


def resolve(given: Mapping[str, str | None], environment: Mapping[str, str], flags: Iterable[Flag]) -> dict[str, str]:
    """Return every value by field name: the flag if given, else its variable unless that is empty, else the default.

    Raises: UsageError("usage.bad-choice", "usage.flags"), naming the flag or the variable that is wrong.
    """
    values: dict[str, str] = {}
    for flag in sorted(flags, key=lambda flag: flag.name == "--driver-name"):  # its default depends on another's value
        value, source = given.get(flag.field), flag.name
        if value is None:
            text = environment.get(flag.variable, "")
            value, source = (text, flag.variable) if text else (_default(flag, values), flag.name)
        if flag.choices and value not in flag.choices:
            raise UsageError("bad-choice", f"{source}={value!r} is not one of {', '.join(flag.choices)}")
        if flag.default and not value:  # an empty path would mean the folder that the process happens to be in
            raise UsageError("flags", f"{source} is empty", hint=f"leave it out to use the default {flag.default}")
        values[flag.field] = value
    return values


def _default(flag: Flag, values: Mapping[str, str]) -> str:
    """Return the value of a flag that is not given; `values` has the flags that were read before it."""
    vendor = registered(values.get("hardware", "")) if flag.name == "--driver-name" else None
    return vendor.driver if vendor else flag.default


FLAGS: tuple[Flag, ...] = (
    Flag("--node-name", "", "name of this node (the pod's spec.nodeName)", "NODE", is_hardware=True),
    Flag("--kubeconfig", "", "kubeconfig file (default: the pod's own ServiceAccount)", "FILE"),
    Flag(
        "--driver-name",
        DEFAULT_VENDOR.driver,
        "DRA driver name, used in slices, sockets and claims, for one vendor; the default is that of the vendor of "
        "--hardware",
        "NAME",
    ),
    Flag("--cdi-root", "/var/run/cdi", "folder for CDI files, watched by the container runtime", "DIR"),
    Flag(
        "--kubelet-registrar-directory-path",
        "/var/lib/kubelet/plugins_registry",
        "folder where the kubelet looks for registration sockets",
        "DIR",
    ),
    Flag(
        "--kubelet-plugins-directory-path",
        "/var/lib/kubelet/plugins",
        "folder for the plugin's data; the same path on the host",
        "DIR",
    ),
    Flag(
        "--device-plugins-directory-path",
        "/var/lib/kubelet/device-plugins",
        "folder where device plugins keep their sockets",
        "DIR",
        is_hardware=True,
    ),
    Flag(
        "--device-plugin",
        "yield",
        "while a device plugin serves the GPUs: yield (publish no GPUs) or ignore (both hand out the same GPUs)",
        "CHOICE",
        choices=("yield", "ignore"),
        is_hardware=True,
    ),
    Flag(
        "--pod-uid", "", "UID of the agent's pod; gives it sockets of its own, so that two versions can overlap", "UID"
    ),
    Flag(
        "--metrics-address",
        "",
        "HOST:PORT for /metrics, and for /healthz and /readyz without --probe-address; empty: not served",
        "ADDRESS",
    ),
    Flag("--probe-address", "", "HOST:PORT for /healthz and /readyz alone; empty: at --metrics-address", "ADDRESS"),
    Flag(
        "--metrics-certificate",
        "",
        "folder with tls.crt and tls.key to serve --metrics-address by HTTPS; empty: HTTP",
        "DIR",
    ),
    Flag(
        "--metrics-readers",
        "any",
        "who may scrape: any, or authorized (clients whose token the API server allows to get /metrics)",
        "CHOICE",
        choices=("any", "authorized"),
    ),
    Flag("--log-format", "text", "format of the log: text or json", "FORMAT", choices=("text", "json")),
    Flag("--sysfs-root", "/sys", "path to use instead of /sys", "DIR", is_hardware=True),
    Flag("--proc-root", "/proc", "path to use instead of /proc", "DIR", is_hardware=True),
    Flag("--dev-root", "/dev", "path to use instead of /dev", "DIR", is_hardware=True),
    Flag("--nvidia-driver-root", "/", "path of the NVIDIA driver root on the host", "DIR", is_hardware=True),
    Flag(
        "--nvidia-driver-root-mount",
        "",
        "path of the NVIDIA driver root as the agent sees it (default: the same)",
        "DIR",
        is_hardware=True,
    ),
    Flag(
        "--host-root-mount",
        "/",
        "where the agent sees the host's /usr, whose toolkit is used if the driver root has none",
        "DIR",
        is_hardware=True,
    ),
    Flag(
        "--gpudirect-storage",
        "off",
        "on: containers with an NVIDIA GPU also get /dev/nvidia-fs*, /run/udev and /etc/cufile.json",
        "MODE",
        choices=("on", "off"),
        is_hardware=True,
    ),
    Flag(
        "--mig",
        "dynamic",
        "dynamic: partitions are created on demand where the API server keeps shared counters; static: only existing "
        "partitions are published",
        "MODE",
        choices=("dynamic", "static"),
        is_hardware=True,
    ),
    Flag(
        "--mig-profiles",
        "usual",
        "usual, or all: also the profiles with graphics and with other media engines",
        "PROFILES",
        choices=("usual", "all"),
        is_hardware=True,
    ),
    Flag(
        "--mig-geometry",
        "",
        "how unused GPUs are partitioned where that is not done on demand: all-1g.10gb, all-balanced, all-disabled, a "
        "list (1g.10gb=4,3g.40gb=1), a name from --mig-config, or label (the node's label nvidia.com/mig.config names "
        "it); by node: PATTERN:GEOMETRY or KEY=VALUE:GEOMETRY; separate several with semicolons",
        "GEOMETRY",
    ),
    Flag("--mig-config", "", "file of named geometries, in the format of NVIDIA's MIG manager (mig-configs)", "FILE"),
    Flag(
        "--sharing-config",
        "",
        "YAML file that defines which devices are shared and how; the format of NVIDIA's device plugin is also "
        "accepted; empty: none",
        "FILE",
        is_hardware=True,
    ),
    Flag(
        "--mps-tenants",
        "any",
        "whose claims may share an MPS daemon: any (as far as the sharing configuration allows), or namespace: only "
        "those of one namespace, and the configuration has to name the namespaces",
        "TENANTS",
        choices=("any", "namespace"),
        is_hardware=True,
    ),
    Flag(
        "--takeover-list-claims",
        "false",
        "true: list the cluster's claims at the start, for a kubelet that does not report claims (its gate "
        "KubeletPodResourcesDynamicResources is off); needs the verb list on resourceclaims",
        "BOOL",
        choices=("false", "true"),
    ),
    Flag(
        "--device-metadata",
        "off",
        "on: give containers files with the attributes of their devices (KEP-5304), as KubeVirt reads them; off: none",
        "SWITCH",
        choices=("on", "off"),
    ),
    Flag(
        "--claim-status",
        "off",
        "on: write into the status of prepared claims which devices they got and whether they are healthy; needs the "
        "right to patch resourceclaims/status; off: do not",
        "SWITCH",
        choices=("on", "off"),
    ),
    Flag(
        "--node-condition",
        "off",
        "on: write a condition of the Node that shows whether its devices are healthy; needs the right to patch "
        "nodes/status; off: do not",
        "SWITCH",
        choices=("on", "off"),
    ),
    Flag(
        "--node-labels",
        "off",
        "file or object: pass the labels of GPU feature discovery that apply to the node to Node Feature Discovery, in "
        "a file on the host or in a NodeFeature object; off: do not",
        "WHERE",
        choices=("off", "file", "object"),
    ),
    Flag(
        "--feature-file",
        "/etc/kubernetes/node-feature-discovery/features.d/dra-driver",
        "the file for --node-labels file",
        "FILE",
    ),
    Flag(
        "--health",
        "on",
        "on: watch the GPUs' health, and taint or withhold the faulty ones; off: do neither",
        "SWITCH",
        choices=("on", "off"),
    ),
    Flag(
        "--health-policy",
        "",
        "YAML file (version: health/v1) that defines what each kind of fault leads to; empty: the defaults",
        "FILE",
    ),
    Flag(
        "--remediation",
        "off",
        "off; on: reset GPUs that need it once no pod uses them, and ask for reboots; dry-run: only log it",
        "MODE",
        choices=("off", "dry-run", "on"),
    ),
    Flag(
        "--remediation-policy",
        "",
        "YAML file (version: remediation/v1) that defines the action for each fault; empty: the defaults",
        "FILE",
    ),
    Flag(
        "--passthrough",
        "",
        "YAML file (version: passthrough/v1) that names the GPUs which virtual machines may have; empty: none",
        "FILE",
    ),
    Flag(
        "--imex-channel",
        "off",
        "auto: offer IMEX channel 0 where the node's GPUs are in one clique of a fabric of several nodes; off: do not",
        "SWITCH",
        choices=("off", "auto"),
    ),
    Flag(
        "--validate",
        "0",
        "how a device is tested before it is offered: none; 0: by what the vendor's library reports; 1: by a program "
        "that computes on it; 2: also all of its memory and its copies; or a command with an absolute path, which is "
        "run without a shell",
        "LEVEL",
    ),
    Flag(
        "--telemetry",
        "basic",
        "off; basic: measure the GPUs and publish it at --metrics-address with claim and pod; full: the profiling "
        "counters too (Hopper and newer), which show the use of each MIG partition",
        "LEVEL",
        choices=("off", "basic", "full"),
    ),
    Flag("--telemetry-interval", "10", "seconds from one round of measurements to the next, 1 to 60", "SECONDS"),
    Flag(
        "--dcgm-names",
        "true",
        "false: leave out the metrics that have the names of NVIDIA's exporter, for a node where that runs too",
        "BOOL",
        choices=("true", "false"),
    ),
    Flag(
        "--telemetry-former-names",
        "false",
        "true: publish Intel's metrics also under the names that Intel's exporter had before (xpum_…)",
        "BOOL",
        choices=("false", "true"),
    ),
    Flag(
        "--telemetry-counters",
        "",
        "CSV file of NVIDIA's exporter that selects the metrics; empty: its usual ones",
        "FILE",
    ),
    Flag(
        "--telemetry-hostname-label",
        "Hostname",
        "label with the node's name: Hostname, as most dashboards have it, or hostname, as newer exporters write it",
        "LABEL",
        choices=("Hostname", "hostname"),
    ),
    Flag(
        "--telemetry-repeat-gpu",
        "false",
        "true: show what only a whole GPU reports (power, temperature) on each of its partitions instead; sums over "
        "partitions then count it several times",
        "BOOL",
        choices=("false", "true"),
    ),
    Flag(
        "--lease-namespace",
        "dra-driver",
        "namespace of the objects that agents keep in the API: the Leases that limit how many devices of the cluster "
        "may lose their pods or be repaired at once, and the objects of --node-labels object",
        "NAMESPACE",
    ),
    Flag(
        "--hardware",
        "auto",
        f"auto (each vendor whose hardware is there), a list of {', '.join(one.name for one in VENDORS)}, or "
        "simulated:PROFILE-OR-FILE",
        "CHOICE",
        is_hardware=True,
    ),
)
