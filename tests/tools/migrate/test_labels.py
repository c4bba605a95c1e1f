"""Labels of GPU feature discovery as CEL: a node's labels match a rule exactly when its GPUs match the expression."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.quantity import Quantity
from dra_driver.selectors import compile_selector
from dra_driver.tools.migrate.labels import LabelRequirement, NotExpressible, refined, to_cel
from dra_driver.tools.migrate.node_rules import move_to_selectors
from dra_driver.tools.migrate.report import FileReport, ReportSubject
from dra_driver.tools.migrate.resources import DeviceKind
from dra_driver.tools.world.fleet import fleet_of_profile

PROFILES = ("dgx-h100", "dgx-a100", "hgx-h200", "gb200-tray", "l40s", "t4")
GPU, PART = DeviceKind(), DeviceKind(is_partition=True)


def labels_of(wire):
    """Return the labels that GPU feature discovery would write for a node with this GPU."""
    found = {name: next(iter(value.values())) for name, value in wire["attributes"].items()}
    major, minor, _ = found["cudaComputeCapability"].split(".")
    driver = found["driverVersion"].split(".")
    made = {
        "gpu.present": "true",
        "gpu.product": found["labelProduct"],
        "gpu.compute.major": major,
        "gpu.compute.minor": minor,
        "cuda.driver.major": driver[0],
        "cuda.driver-version.minor": driver[1],
        "cuda.driver-version.revision": driver[2],
        "cuda.driver-version.full": found["driverVersion"],
        "cuda.runtime.major": found["cudaDriverVersion"].split(".")[0],
        "mig.capable": str(found["migCapable"]).lower(),
        "gpu.sharing-strategy": "none",
        "gpu.replicas": "1",
    }
    if "family" in found:
        made["gpu.family"] = found["family"]
    if "memory" in wire["capacity"]:
        made["gpu.memory"] = str(Quantity.parse(wire["capacity"]["memory"]["value"]).value >> 20)
    return {f"nvidia.com/{name}": value for name, value in made.items()}


@functools.cache
def gpus():
    """Return one whole GPU of each profile, with the labels of its node."""
    wires = [fleet_of_profile(name).devices[0].wire for name in PROFILES]
    return [(wire, labels_of(wire)) for wire in wires]


def matches(rule, labels):
    """Return whether labels match a rule, decided as Kubernetes' node affinity does."""
    value = labels.get(rule.label)
    if rule.operator == "In":
        return value in rule.values
    if rule.operator == "NotIn":
        return value not in rule.values
    if rule.operator == "Exists":
        return value is not None
    if value is None or not value.lstrip("-").isdigit():
        return False
    bound = int(rule.values[0])
    return int(value) > bound if rule.operator == "Gt" else int(value) < bound


@functools.cache
def compiled(text):
    return compile_selector(text, environment="new")


def holds(cel, wire):
    return cel == "" or compiled(cel).matches(wire, driver="gpu.nvidia.com")


@st.composite
def rules(draw):
    """Make a rule on a label, with values that nodes have, and near misses."""
    names = sorted({name for _, labels in gpus() for name in labels})
    label = draw(st.sampled_from(names))
    known = sorted({labels[label] for _, labels in gpus() if label in labels})
    near = [str(int(one) + step) for one in known if one.isdigit() for step in (-1, 1)]
    value = st.sampled_from([*known, *near, "none-of-them"])
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "Gt", "Lt"]))
    if operator in {"Gt", "Lt"}:
        return LabelRequirement(label, operator, (draw(st.sampled_from(near or ["1"])),))
    return LabelRequirement(
        label, operator, () if operator == "Exists" else tuple(draw(st.lists(value, min_size=1, max_size=3)))
    )


@settings(max_examples=60, deadline=None)
@given(rules())
def test_a_rule_with_an_expression_matches_the_devices_of_the_nodes_that_it_matched(rule):
    cel = to_cel(rule, GPU)
    if not isinstance(cel, NotExpressible):
        for wire, labels in gpus():
            # A node without the label of memory has a GPU that reports none, so that neither of both matches.
            assert holds(cel, wire) == matches(rule, labels), (cel, labels)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(rules(), min_size=1, max_size=3), min_size=1, max_size=3))
def test_alternatives_that_become_selectors_match_the_devices_of_the_nodes_that_they_matched(terms):
    listed = [
        {"matchExpressions": [{"key": r.label, "operator": r.operator, "values": list(r.values)} for r in term]}
        for term in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}
    spec = {"affinity": {"nodeAffinity": required}}
    rows = move_to_selectors(spec, [GPU], ReportSubject("Pod p", FileReport()))
    if "affinity" not in spec:
        for wire, labels in gpus():
            wanted = any(all(matches(rule, labels) for rule in term) for term in terms)
            assert all(holds(text, wire) for text in rows[GPU]) == wanted


@settings(max_examples=60, deadline=None)
@given(rules(), st.booleans())
def test_no_expression_fails_on_a_device_without_attributes(rule, is_partition):
    cel = to_cel(rule, PART if is_partition else GPU)
    if isinstance(cel, str) and cel:
        for wire in ({"name": "bare", "attributes": {}, "capacity": {}}, *(one for one, _ in gpus())):
            assert compiled(cel).matches(wire, driver="gpu.nvidia.com") in {True, False}
        assert compiled(cel).admissible


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("gpu.count", "gpu-count"),
        ("gpu.machine", "label-kept"),
        ("gpu.mode", "label-kept"),
        ("mig.strategy", "label-kept"),
        ("vgpu.present", "label-kept"),
        ("gpu.deploy.driver", "label-kept"),
    ],
)
def test_a_label_without_a_device_attribute_is_kept_with_a_reason(label, why):
    cel = to_cel(LabelRequirement(f"nvidia.com/{label}", "In", ("8",)), GPU)
    assert isinstance(cel, NotExpressible)
    assert cel.code == why
    assert cel.why


def test_a_product_label_distinguishes_partitions_and_shares():
    def product(value):
        return [LabelRequirement("nvidia.com/gpu.product", "In", (value,))]

    assert refined(GPU, product("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")) == PART
    assert refined(GPU, product("NVIDIA-A10-SHARED")) == DeviceKind(is_share=True)
    assert refined(GPU, product("NVIDIA-A10")) == GPU
    assert refined(GPU, [LabelRequirement("nvidia.com/gpu.sharing-strategy", "In", ("mps",))]) == DeviceKind(
        is_share=True
    )


def test_a_partition_is_chosen_by_product_and_profile():
    [(wire, _)] = [one for one in gpus() if one[1]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"]
    part = {
        "name": "part",
        "attributes": {**wire["attributes"], "profile": {"string": "1g.10gb"}, "type": {"string": "mig"}},
        "capacity": {},
    }
    for value, wanted in (
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", True),
        ("NVIDIA-H100-80GB-HBM3-MIG-2g.20gb", False),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.10gb", False),
    ):
        cel = to_cel(LabelRequirement("nvidia.com/gpu.product", "In", (value,)), PART)
        assert holds(cel, part) is wanted
        assert holds(to_cel(LabelRequirement("nvidia.com/gpu.product", "NotIn", (value,)), PART), part) is not wanted


def test_labels_of_a_profile_are_about_partitions_of_that_profile():
    part = DeviceKind(is_partition=True, profile="1g.10gb")
    assert to_cel(LabelRequirement("nvidia.com/mig-1g.10gb.count", "Exists"), part) == ""
    assert to_cel(LabelRequirement("nvidia.com/mig-1g.10gb.count", "Gt", ("0",)), part) == ""
    assert isinstance(to_cel(LabelRequirement("nvidia.com/mig-1g.10gb.count", "Gt", ("3",)), part), NotExpressible)
    assert "multiprocessors" in to_cel(LabelRequirement("nvidia.com/mig-1g.10gb.multiprocessors", "Gt", ("10",)), part)
    assert isinstance(to_cel(LabelRequirement("nvidia.com/mig-2g.20gb.count", "Exists"), part), NotExpressible)
    assert isinstance(to_cel(LabelRequirement("nvidia.com/mig-1g.10gb.count", "Exists"), GPU), NotExpressible)


def test_leading_zeros_of_driver_versions_are_removed():
    cel = to_cel(LabelRequirement("nvidia.com/cuda.driver-version.full", "In", ("535.54.03",)), GPU)
    assert 'semver("535.54.3")' in cel


@pytest.mark.parametrize("rule", [("In", ()), ("Gt", ("a",)), ("Gt", ("1", "2")), ("Exists", ("1",)), ("Like", ("1",))])
def test_an_invalid_rule_has_no_expression(rule):
    assert isinstance(to_cel(LabelRequirement("nvidia.com/gpu.memory", *rule), GPU), NotExpressible)
