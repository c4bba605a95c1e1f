"""Flags of the agent, each with an environment twin: upper case, underscores, no prefix. A flag beats its twin.

One table, read by the agent (argparse) and by the commands that look at this node's hardware (click), so that
`dra-driver devices` and the agent can't disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_driver.model.errors import UsageError
from dra_driver.model.names import NVIDIA_DRIVER


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `default` is shown in --help; `is_hardware` marks those that commands on this node's hardware share."""

    name: str  # "--node-name"
    default: str
    meaning: str
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_hardware: bool = False

    @property
    def field(self) -> str:
        """Return the flag as a Python name: `node_name`."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def twin(self) -> str:
        """Return the environment twin: `NODE_NAME`."""
        return self.field.upper()


FLAGS: tuple[Flag, ...] = (
    Flag("--node-name", "", "this node, as spec.nodeName says", "NODE", is_hardware=True),
    Flag("--kubeconfig", "", "kubeconfig file; without it the pod's own ServiceAccount", "FILE"),
    Flag("--driver-name", NVIDIA_DRIVER, "DRA driver name: of slices, sockets and claims", "NAME"),
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
        "folder where device plugins have their sockets",
        "DIR",
        is_hardware=True,
    ),
    Flag(
        "--device-plugin",
        "yield",
        "while a device plugin serves the GPUs: yield (publish none) or ignore (both hand out the same GPUs)",
        "CHOICE",
        choices=("yield", "ignore"),
        is_hardware=True,
    ),
    Flag("--pod-uid", "", "UID of the agent's pod: sockets of its own, so that two versions can overlap", "UID"),
    Flag("--metrics-address", "", "HOST:PORT for /metrics, /healthz and /readyz; empty for none", "ADDRESS"),
    Flag("--log-format", "text", "text or json", "FORMAT", choices=("text", "json")),
    Flag("--sysfs-root", "/sys", "replaces /sys", "DIR", is_hardware=True),
    Flag("--proc-root", "/proc", "replaces /proc", "DIR", is_hardware=True),
    Flag("--dev-root", "/dev", "replaces /dev", "DIR", is_hardware=True),
    Flag("--nvidia-driver-root", "/", "NVIDIA driver root as the host names it", "DIR", is_hardware=True),
    Flag(
        "--nvidia-driver-root-mount",
        "",
        "where the agent sees the NVIDIA driver root (default: the same)",
        "DIR",
        is_hardware=True,
    ),
    Flag(
        "--mig",
        "dynamic",
        "dynamic: partitions are made on demand where the API server keeps shared counters; static: as they stand",
        "MODE",
        choices=("dynamic", "static"),
        is_hardware=True,
    ),
    Flag(
        "--mig-profiles",
        "usual",
        "usual, or all: with graphics and with other media engines too",
        "WHICH",
        choices=("usual", "all"),
        is_hardware=True,
    ),
    Flag(
        "--mig-geometry",
        "",
        "how unused GPUs are cut where that is not done on demand: all-1g.10gb, all-balanced, all-disabled, a list "
        "(1g.10gb=4,3g.40gb=1), a name of --mig-config, or label: as the node's label nvidia.com/mig.config says; by "
        "node: PATTERN:GEOMETRY or KEY=VALUE:GEOMETRY; several with semicolons",
        "GEOMETRY",
    ),
    Flag("--mig-config", "", "file of named geometries as NVIDIA's MIG manager reads it (mig-configs)", "FILE"),
    Flag(
        "--sharing-config",
        "",
        "YAML file that says which devices are shared and how; also one of NVIDIA's device plugin; empty: none",
        "FILE",
        is_hardware=True,
    ),
    Flag(
        "--mps-tenants",
        "any",
        "whose claims may share an MPS daemon: any, as the sharing configuration lets; namespace: those of one "
        "namespace, for which the configuration names a list of them",
        "WHOSE",
        choices=("any", "namespace"),
        is_hardware=True,
    ),
    Flag(
        "--takeover-list-claims",
        "false",
        "true: list the cluster's claims at the start, for a kubelet that tells nothing of claims (its gate "
        "KubeletPodResourcesDynamicResources is off); needs the verb list on resourceclaims",
        "BOOL",
        choices=("false", "true"),
    ),
    Flag("--hardware", "auto", "auto, nvidia, or simulated:PROFILE-OR-FILE", "CHOICE", is_hardware=True),
)


def resolve(
    given: Mapping[str, str | None], environment: Mapping[str, str], flags: Iterable[Flag] = FLAGS
) -> dict[str, str]:
    """Return every flag's value by field name: the flag if given, else its non-empty twin, else the default.

    Raises: UsageError("usage.bad-choice", "usage.flags") naming the flag or the twin that is wrong.
    """
    values = {}
    for flag in flags:
        value, source = given.get(flag.field), flag.name
        if value is None:
            twin = environment.get(flag.twin, "")
            value, source = (twin, flag.twin) if twin else (flag.default, flag.name)
        if flag.choices and value not in flag.choices:
            raise UsageError("bad-choice", f"{source}={value!r} is none of {', '.join(flag.choices)}")
        if flag.default and not value:  # an empty folder would be the one that the process happens to be in
            raise UsageError("flags", f"{source} is empty", hint=f"leave it out for {flag.default}")
        values[flag.field] = value
    return values
