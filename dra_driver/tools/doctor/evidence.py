"""What the API server shows: the objects that matter to this driver, and the fields behind feature gates that it keeps.

In: an API client. Out: `ClusterEvidence`; what the client may not read is listed as `Unexamined`, and nothing is
guessed. Nothing is changed: the questions about gates are dry runs.
Source: Kubernetes API concepts, dry-run; fields behind disabled gates are dropped silently at create.
"""

from __future__ import annotations

import glob
import os
import re
import sqlite3
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from dra_driver.base.errors import ApiError, InputError, LedgerError
from dra_driver.base.flags import DEFAULT_VENDOR, RegisteredVendor, registered_or_default
from dra_driver.base.versions import Since
from dra_driver.base.wire import Wire
from dra_driver.hardware import pci
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.nvidia import library as sysfs
from dra_driver.hardware.pci import on_bus
from dra_driver.hardware.port import Roots
from dra_driver.kube import paths, watch
from dra_driver.kube.api import KubeApi, ServerVersion
from dra_driver.node.health.cases import RemediationCase, RemediationJournal, Stage
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.fault_record import HealthRecord
from dra_driver.node.health.faults import Fault
from dra_driver.node.health.stored_health import HealthStore, record_among
from dra_driver.node.health.validation_results import UntestedDevice, untested_among
from dra_driver.node.ledger.record import record_of_row
from dra_driver.node.ledger.recorded_steps import RecordedFile, UnknownStep
from dra_driver.node.ledger.state import FILE_NAME
from dra_driver.tools.doctor.finding import Unexamined
from dra_driver.tools.world.access import PROBES, has_field

SECONDS = 30.0

KINDS: dict[str, str] = {
    "nodes": paths.NODES,
    "namespaces": paths.NAMESPACES,
    # Claims are read before pods, so that a pod which reserves a claim exists by the time pods are read.
    "claims": paths.CLAIMS,
    "pods": paths.PODS,
    "events": paths.EVENTS,
    "slices": paths.SLICES,
    "classes": paths.CLASSES,
    "templates": paths.TEMPLATES,
    "policies": paths.POLICIES,
    "bindings": paths.POLICY_BINDINGS,
    "daemonsets": paths.DAEMON_SETS,
}
_USERS_KINDS = frozenset({"claims", "pods", "events", "templates"})  # kinds of objects that users have in namespaces
_SELECTED = {"events": "reason=FailedPrepareDynamicResources"}
# What an agent's ServiceAccount must be allowed to do: (group, resource, verb). Source: deploy/manifests/rbac.yaml.
RIGHTS = (
    ("resource.k8s.io", "resourceclaims", "get"),
    *(("resource.k8s.io", "resourceslices", verb) for verb in ("get", "list", "watch", "create", "update", "delete")),
    ("", "nodes", "get"),
    ("", "events", "create"),
)
_LIST_CLAIMS = ("resource.k8s.io", "resourceclaims", "list")  # needed only if the chart's takeover.listClaims is set


@dataclass(frozen=True, slots=True)
class ClusterEvidence:
    """What was read from the API server.

    A kind that could not be read is missing from `objects`, and a gate that could not be asked about from `kept`.
    `rights` lists for each ServiceAccount of an agent which of `RIGHTS` it lacks. `rules_api` is the version of the API
    in which the server serves DeviceTaintRules that can delete nothing; "" if it serves none.
    """

    version: ServerVersion
    driver: str
    objects: Mapping[str, list[Wire]] = field(default_factory=dict)
    kept: Mapping[str, bool] = field(default_factory=dict)
    rights: Mapping[str, list[str]] = field(default_factory=dict)
    unseen: tuple[Unexamined, ...] = ()
    rules_api: str = ""

    def of(self, kind: str) -> list[Wire]:
        """Return the objects of one kind; none if they could not be read."""
        return self.objects.get(kind, [])

    def has(self, *kinds: str) -> bool:
        """Return whether all of these kinds were read."""
        return all(kind in self.objects for kind in kinds)


def read_cluster(api: KubeApi, driver: str, namespace: str = "", *, home: str = "") -> ClusterEvidence:
    """Read the cluster; if a namespace is given, only the claims and pods of this namespace.

    If the client may not read those of all namespaces, those of the namespace `home` are read. Raises: ApiError if the
    server can't be reached or does not accept the credentials (401).
    """
    version = api.server_version()
    objects: dict[str, list[Wire]] = {}
    unseen: list[Unexamined] = []
    for kind, path in KINDS.items():
        places = [namespace or "", *([home] if home and not namespace else [])] if kind in _USERS_KINDS else [""]
        for place in places:
            try:
                where = paths.within(path, place) if place else path
                objects[kind] = list(watch.objects(api, where, field_selector=_SELECTED.get(kind, "")))
                break
            except ApiError as error:
                if error.status in {0, 401}:
                    raise
                what = f"{kind} of namespace {place}" if place else f"{kind} of all namespaces" * (len(places) > 1)
                unseen.append(Unexamined(what or kind, _why(error)))
    _reread_claims(api, objects)
    kept, unasked = _ask_gates(api, driver, version.minor, objects.get("nodes", []))
    rights, unchecked = _ask_rights(api, objects.get("daemonsets", []))
    everything = (*unseen, *unasked, *unchecked)
    return ClusterEvidence(version, driver, objects, kept, rights, everything, _served_rules(api, version))


def _served_rules(api: KubeApi, version: ServerVersion) -> str:
    """Return in which version of the API the server serves rules that can delete nothing; "" if it does not.

    Alpha and beta versions of an API are off by default, whatever the gates are.
    """
    since = max((minor for minor in Since.TAINT_RULES if minor <= version.minor), default=0)
    wanted = Since.TAINT_RULES.get(since, "")
    if not wanted:
        return ""
    try:
        group = api.request("GET", paths.resource_group(wanted), timeout_s=SECONDS)
    except ApiError as error:
        if error.status in {0, 401}:
            raise
        return ""
    return wanted if any(one.get("name") == "devicetaintrules" for one in group.get("resources") or ()) else ""


def _reread_claims(api: KubeApi, objects: dict[str, list[Wire]]) -> None:
    """Read those claims again whose reserving pod is missing: the pod may have ended between the two lists."""
    pods = {pod["metadata"].get("uid") for pod in objects.get("pods", ())}
    for number, claim in enumerate(objects.get("claims", ()) if "pods" in objects else ()):
        users = (claim.get("status") or {}).get("reservedFor") or ()
        if all(user.get("resource") != "pods" or user.get("uid") in pods for user in users):
            continue
        metadata = claim["metadata"]
        path = paths.claim_path(str(metadata.get("namespace")), metadata["name"])
        try:
            objects["claims"][number] = api.request("GET", path, timeout_s=SECONDS)
        except ApiError:
            objects["claims"][number] = {**claim, "status": {}}


def agents(daemonsets: list[Wire]) -> list[Wire]:
    """Return the DaemonSets that run an agent, whatever their names are."""
    return [daemonset for daemonset in daemonsets if _label(daemonset, "app.kubernetes.io/name") == "dra-driver"]


def _label(wire: Wire, name: str) -> Any:
    return (wire["metadata"].get("labels") or {}).get(name)


def _ask_gates(api: KubeApi, driver: str, minor: int, nodes: list[Wire]) -> tuple[dict[str, bool], list[Unexamined]]:
    node = nodes[0]["metadata"]["name"] if nodes else "node"
    kept: dict[str, bool] = {}
    unseen: list[Unexamined] = []
    for gate, probe in PROBES.items():
        path, body = probe.request(driver, node, minor)
        try:
            stored = api.request("POST", path, body=body, query={"dryRun": "All"}, timeout_s=SECONDS)
        except ApiError as error:
            unseen.append(Unexamined(f"gate {gate}", _why(error)))
        else:
            kept[gate] = has_field(probe, stored)
    return kept, unseen


def _ask_rights(api: KubeApi, daemonsets: list[Wire]) -> tuple[dict[str, list[str]], list[Unexamined]]:
    """Ask the API server which of `RIGHTS` each agent's ServiceAccount lacks."""
    lacking: dict[str, list[str]] = {}
    for daemonset in agents(daemonsets):
        template = daemonset["spec"]["template"]
        if (template["metadata"].get("labels") or {}).get("app.kubernetes.io/component", "agent") != "agent":
            continue
        account = template["spec"].get("serviceAccountName") or "default"
        user = f"system:serviceaccount:{daemonset['metadata']['namespace']}:{account}"
        try:
            needed = (*RIGHTS, _LIST_CLAIMS) if _lists_claims(template) else RIGHTS
            lacking[user] = [_named(right) for right in needed if not _is_allowed(api, user, right)]
        except ApiError as error:
            return lacking, [Unexamined(f"rights of {user}", _why(error))]
    return lacking, []


def _lists_claims(template: Wire) -> bool:
    env = (entry for container in template["spec"]["containers"] for entry in container.get("env") or ())
    return any((entry.get("name"), entry.get("value")) == ("TAKEOVER_LIST_CLAIMS", "true") for entry in env)


def _is_allowed(api: KubeApi, user: str, right: tuple[str, str, str]) -> bool:
    group, resource, verb = right
    spec = {"user": user, "resourceAttributes": {"group": group, "resource": resource, "verb": verb}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answered = api.request("POST", paths.ACCESS_REVIEWS, body=review, timeout_s=SECONDS)
    return bool((answered.get("status") or {}).get("allowed"))


def _named(right: tuple[str, str, str]) -> str:
    group, resource, verb = right
    return f"{verb} {resource}{f'.{group}' if group else ''}"


def _why(error: ApiError) -> str:
    return f"{error.message} [{error.code}]"


# Container runtime: whether it uses CDI files, and from which folders, according to its configuration files.

DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# Kubernetes distributions that ship their own containerd have its configuration in other places.
_CONTAINERD = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "etc/k0s/containerd.toml",
    "var/snap/microk8s/current/args/containerd.toml",
)
_CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*")
# The CRI plugin's table in config version 2 (containerd 1.x) and in version 3 (2.x).
_TABLES = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """The configuration of one runtime. `is_cdi_on` is None if it leaves CDI to the default of its version."""

    runtime: str
    file: str
    is_cdi_on: bool | None
    folders: tuple[str, ...]
    fault: str = ""


def read_runtimes(host: Path) -> tuple[RuntimeConfig, ...]:
    """Return the configuration of every runtime that is configured below `host`.

    A file with an error in it is reported in `fault`. Raises: PermissionError if a file may not be read.
    """
    files = [host / name for name in _CONTAINERD]
    crio = _crio(host)
    return (*(_containerd(path, host) for path in files if path.is_file()), *((crio,) if crio else ()))


def _containerd(path: Path, host: Path) -> RuntimeConfig:
    is_on: bool | None = None
    folders = DEFAULT_FOLDERS
    try:
        for document in _with_imports(path, host):
            plugins = document.get("plugins") or {}
            for table in (plugins.get(name) or {} for name in _TABLES):
                is_on = table.get("enable_cdi", is_on)
                folders = tuple(table.get("cdi_spec_dirs") or folders)
    except PermissionError:
        raise
    except (OSError, ValueError, AttributeError) as fault:
        return RuntimeConfig("containerd", _host_name(path, host), None, folders, str(fault))
    return RuntimeConfig("containerd", _host_name(path, host), is_on, folders)


def _with_imports(path: Path, host: Path) -> Iterator[dict[str, Any]]:
    """Yield the file, and then the files that it imports, each of which overrides the ones before it."""
    document = tomllib.loads(path.read_text("utf-8"))
    yield document
    for pattern in document.get("imports") or ():
        absolute = host / str(pattern).lstrip("/") if str(pattern).startswith("/") else path.parent / str(pattern)
        for name in sorted(glob.glob(str(absolute))):  # noqa: PTH207 - the pattern may be absolute
            yield tomllib.loads(Path(name).read_text("utf-8"))


def _crio(host: Path) -> RuntimeConfig | None:
    files = [path for pattern in _CRIO for path in sorted(host.glob(pattern)) if path.is_file()]
    if not files:
        return None
    folders = DEFAULT_FOLDERS
    try:
        for path in files:
            runtime = (tomllib.loads(path.read_text("utf-8")).get("crio") or {}).get("runtime") or {}
            folders = tuple(runtime.get("cdi_spec_dirs") or folders)
    except PermissionError:
        raise
    except (OSError, ValueError, AttributeError) as fault:
        return RuntimeConfig("CRI-O", _host_name(files[0], host), None, folders, str(fault))
    return RuntimeConfig("CRI-O", _host_name(files[0], host), is_cdi_on=True, folders=folders)


def _host_name(path: Path, host: Path) -> str:
    return f"/{path.relative_to(host)}"


# Kernel driver: which module drives the GPUs of this node, in which version, and whether it could be built.

_FILE_VERSION = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class KernelDriver:
    """The kernel driver and the library of the GPUs. A version is None if there is no such module or library.

    `bound` maps the PCI address of each GPU to its kernel driver, or to None if it has none. `sources` are driver
    sources that are ready to be built (DKMS); `has_headers`: whether the running kernel's build folder exists.
    """

    bound: dict[str, str | None]
    module_version: str | None
    library_version: str | None
    library_file: str | None
    sources: tuple[str, ...]
    kernel: str
    has_headers: bool


def read_kernel_driver(roots: Roots, host: Path, vendor: str = DEFAULT_VENDOR.name) -> KernelDriver:
    """Read the state of this node. `host` is the root of the host's file system, `vendor` the vendor of the GPUs."""
    file = next(iter([*library.below_mount(roots), *library.in_library_path()]), None)
    release = pci.read_text(Path(roots.proc, "sys/kernel/osrelease")) or os.uname().release
    return KernelDriver(
        bound=_bound(roots, registered_or_default(vendor)),
        module_version=sysfs.read_driver_version(roots),
        library_version=_version_of(file),
        library_file=file,
        sources=tuple(sorted(path.name for path in (host / "usr/src").glob("nvidia-*") if path.is_dir())),
        kernel=release,
        has_headers=os.access(host / "lib/modules" / release / "build", os.F_OK),
    )


def _bound(roots: Roots, vendor: RegisteredVendor) -> dict[str, str | None]:
    """Return the driver of each GPU; virtual functions without a driver are left out, because that is intended."""
    found = on_bus(roots, vendor)
    return {
        address: driver
        for address, driver in found
        if driver or pci.read_physical(pci.function_folder(roots, address)) is None
    }


def _version_of(file: str | None) -> str | None:
    match = _FILE_VERSION.search(os.path.realpath(file)) if file else None
    return match[1] if match else None


# Ledger rows: the content of the agent's ledger, read without changing it.


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One claim as the agent has recorded it. `kinds` are those of its steps; `has_file`: one of them is a CDI file."""

    uid: str
    name: str
    state: str
    boot_id: str
    devices: tuple[str, ...]
    has_file: bool
    kinds: tuple[str, ...] = ()


T = TypeVar("T")


def read_ledger(path: Path) -> tuple[LedgerRow, ...]:
    """Return every claim; none if there is no ledger.

    Raises: PermissionError if it may not be read, ValueError if it is damaged.
    """
    return rows_of(path, _row, "SELECT * FROM claims ORDER BY uid")


def rows_of(path: Path, made: Callable[[sqlite3.Row], T], sql: str, values: Sequence[str] = ()) -> tuple[T, ...]:
    """Return what is made of each row that a query of the ledger finds. Raises: as `read_ledger`."""
    if not path.exists():
        return ()
    if not os.access(path, os.R_OK):
        raise PermissionError(path)
    # Without a write-ahead log no process has the ledger open, and SQLite must not create one only to read the ledger.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return tuple(made(row) for row in connection.execute(sql, values).fetchall())
    except (sqlite3.Error, LedgerError) as fault:
        raise ValueError(f"{path}: {fault}") from fault


def _row(row: sqlite3.Row) -> LedgerRow:
    record = record_of_row(row)
    return LedgerRow(
        uid=record.uid,
        name=record.full_name,
        state=str(record.state),
        boot_id=record.boot_id,
        devices=record.owned_names(),
        has_file=bool(record.steps_of(RecordedFile)),
        kinds=tuple(step.name if isinstance(step, UnknownStep) else step.kind for step in record.steps),
    )


# What the agent of this node has recorded about health: faults, cordons, and when it last wrote.


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """Faults and cordons in force. `silent_s` is how many seconds ago the agent last wrote.

    `remediations` are the GPUs that are under remediation or wait for a person, and `untested` the devices whose tests
    could not run.
    """

    faults: tuple[Fault, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    silent_s: float = 0.0
    remediations: tuple[RemediationCase, ...] = ()
    untested: tuple[UntestedDevice, ...] = ()


def read_faults(folder: Path, now: float) -> NodeFaults | None:
    """Read what is recorded; return None if there is nothing. Raises: LedgerError, InputError, PermissionError."""
    cases = tuple(case_ for case_ in RemediationJournal(folder).cases() if case_.stage is not Stage.RETURNED)
    cordons = tuple(one for one in CordonFile(folder).read() if one.is_in_force(now))
    store = HealthStore(folder)
    if (written := store.written_at()) is None:  # an agent that ended may have removed it, but never the cordons
        return NodeFaults(cordons=cordons, remediations=cases) if cordons or cases else None
    try:
        documents = store.read()
        record = record_among(documents) or HealthRecord()
    except ValueError as error:
        raise InputError("health-record", f"{folder / FILE_NAME}: {error}") from error
    return NodeFaults(
        record.faults(now), cordons, max(0.0, now - written), cases, untested_among(documents, record.boot)
    )
