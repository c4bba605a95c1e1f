"""The rules that apply: the version of Kubernetes and its feature gates, as far as the cluster shows them.

In: a world, and the user's options. Out: `AppliedRules`. A gate is on if the API server keeps its fields, in objects
that exist or in an object that is created as a dry run. The user's options take precedence.

Only the API server's gates can be found out, and a scheduler may have others, so each gate is reported together with
how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.allocation.features import GATES, gates_on
from dra_driver.allocation.pools.replicas import Replica
from dra_driver.doctor.gates import PROBES, has_field
from dra_driver.kube.api import KubeApi
from dra_driver.model.errors import ApiError
from dra_driver.model.kubernetes import (
    COMPATIBILITY_GROUPS,
    LIST_ATTRIBUTES,
    OPTIONAL_NODE_OPERATIONS,
    Since,
    knows_gate,
    minor_of,
)
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.model.wire import SliceWire, Wire
from dra_driver.views.fleet.profile_nodes import FleetOffer
from dra_driver.views.worlds.world import World

DEFAULT_VERSION = "1.35"
DYNAMIC = "dynamic"
PARTITIONS, RESOURCES = "DRAPartitionableDevices", "DRAExtendedResource"
KNOWN_GATES = (*GATES, RESOURCES)
_FIELDS = {
    "consumesCounters": PARTITIONS,
    "taints": "DRADeviceTaints",
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "bindingConditions": "DRADeviceBindingConditions",
}
_LIST_TYPES = frozenset({"ints", "bools", "strings", "versions"})


@dataclass(frozen=True, slots=True)
class AppliedRules:
    """A version, the gates that differ from its defaults, and for each of them how that was found."""

    kubernetes: str
    gates: Mapping[str, bool]
    how: Mapping[str, str]

    @property
    def words(self) -> str:
        """Return the gates that differ from the version's defaults, and how that was found, as text."""
        differing = [f"{name} {'on' if on else 'off'} ({self.how[name]})" for name, on in sorted(self.gates.items())]
        return "; ".join(differing)

    def is_on(self, gate: str) -> bool:
        """Return whether a gate is on."""
        return gate in gates_on(self.kubernetes, self.gates)


def apply_rules(world: World, version: str | None, given: Mapping[str, bool], mig: str = DYNAMIC) -> AppliedRules:
    """Return the rules for a world, and set how the world offers simulated nodes and serves extended resources.

    Call it before simulated nodes are added, because the gates are derived from the slices of the cluster.

    Raises: UnknownVersionError.
    """
    kubernetes = version or world.kubernetes or DEFAULT_VERSION
    defaults = gates_on(kubernetes, {})
    kept = (gate for gate in _kept_by(world.of("ResourceSlice")) if knows_gate(minor_of(kubernetes), gate))
    seen = dict.fromkeys(kept, (True, "its fields are in the ResourceSlices"))
    if not version or kubernetes.startswith(world.kubernetes or " "):
        for gate, on in world.kept.items():
            seen.setdefault(gate, (on, "the API server keeps its fields" if on else "the API server drops its fields"))
    known = seen | {gate: (on, "--gate") for gate, on in given.items()}
    differs = {gate: row for gate, row in known.items() if row[0] != (gate in defaults) or gate in given}
    how = {gate: row[1] for gate, row in differs.items()}
    rules = AppliedRules(kubernetes, {gate: row[0] for gate, row in differs.items()}, how)
    world.serves_resources = rules.is_on(RESOURCES)
    world.serves_implicit_names = minor_of(kubernetes) >= Since.IMPLICIT_NAMES
    world.offer = offer_under(kubernetes, rules.gates, mig)
    return rules


def offer_under(kubernetes: str, gates: Mapping[str, bool], mig: str) -> FleetOffer:
    """Return how the agent offers partitions with `--mig`, a version, and gates that differ from its defaults."""
    minor = minor_of(kubernetes)
    if mig != DYNAMIC:
        return FleetOffer(False, minor, f"existing partitions only (--mig {mig})")
    if PARTITIONS in gates_on(kubernetes, gates):
        return FleetOffer(True, minor, "partitions on demand (--mig dynamic)")
    return FleetOffer(False, minor, f"existing partitions only, because {PARTITIONS} is off")


def _kept_by(slices: Sequence[SliceWire]) -> set[str]:
    """Return the gates whose fields occur in slices, apart from slices of simulated nodes."""
    found: set[str] = set()
    seen: set[int] = set()
    for one in slices:
        spec = one["spec"]
        if spec.get("sharedCounters"):
            found.add(PARTITIONS)
        if spec.get("skipNodeOperations"):
            found.add(OPTIONAL_NODE_OPERATIONS)
        devices = spec.get("devices") or ()
        if isinstance(devices, Replica):
            if devices.shape.is_simulated or id(devices.shape) in seen:
                continue
            seen.add(id(devices.shape))
            devices = devices.shape.wires
        for device in devices:
            for name in _FIELDS.keys() & device.keys():
                if device[name]:
                    found.add(_FIELDS[name])
            if any(one.get("compatibilityGroups") for one in device.get("consumesCounters") or ()):
                found.add(COMPATIBILITY_GROUPS)
            if any(_LIST_TYPES & value.keys() for value in (device.get("attributes") or {}).values()):
                found.add(LIST_ATTRIBUTES)
    return found


def headline(rules: AppliedRules, world: World, profiles: Sequence[str], note: str = "") -> str:
    """Return a line on the rules that apply, and on what simulated nodes offer."""
    parts = [f"rules of Kubernetes {rules.kubernetes}{note}", rules.words]
    if profiles:
        parts.append(f"simulated nodes: {world.offer.words}")
        parts += world.profile_notes
    return "; ".join(part for part in parts if part)


def ask_gates(api: KubeApi, minor: int, nodes: Sequence[Wire]) -> dict[str, bool]:
    """Ask an API server which fields it keeps, by dry-run creates. Gates without an answer are left out."""
    kept = {}
    node = nodes[0]["metadata"]["name"] if nodes else "node"
    for gate, question in PROBES.items():
        path, body = question.request(NVIDIA_DRIVER, node, minor)
        try:
            kept[gate] = has_field(
                question, api.request("POST", path, body=body, query={"dryRun": "All"}, timeout_s=10.0)
            )
        except ApiError:
            continue
    return kept
