"""Rendering: every document fits the schema, has the lowest possible version, and is the same bytes each time."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import PrepareError
from dra_driver.hardware.facts import READ_ONLY_BIND, DeviceNode, Edits, Hook, Mount
from dra_driver.node.cdi import claim_file, claim_uid_of, device_id, device_name, kind, render
from tests.node.cdi.support import cdi_schema

KIND = kind("gpu.nvidia.com")
NODE = Edits(device_nodes=(DeviceNode("/dev/nvidia0", 195, 0, file_mode=0o666),))

paths = st.text("az09._-/", min_size=1, max_size=12).map("/{}".format)
environment = st.lists(st.tuples(st.sampled_from("AB_"), st.text("a =/", max_size=4)).map("=".join), max_size=3).map(
    tuple
)
nodes = st.builds(
    DeviceNode,
    path=paths,
    major=st.integers(1, 511),
    minor=st.integers(0, 1 << 20),
    host_path=st.just("") | paths,
    type=st.just("c"),
    permissions=st.just("rw"),
    file_mode=st.none() | st.integers(0, 0o777),
    gid=st.just(0) | st.integers(1, 65534),
)
mounts = st.builds(Mount, host_path=paths, container_path=paths, options=st.just(READ_ONLY_BIND))
hooks = st.builds(Hook, path=paths, args=st.just(("x", "y")), name=st.just("createContainer"), env=environment)
edits = st.builds(
    Edits,
    device_nodes=st.lists(nodes, max_size=3).map(tuple),
    mounts=st.lists(mounts, max_size=3).map(tuple),
    env=environment,
    hooks=st.lists(hooks, max_size=2).map(tuple),
    additional_gids=st.lists(st.integers(0, 65534), max_size=2).map(tuple),
)
device_names = st.tuples(st.sampled_from("az07"), st.text("az07-", max_size=8), st.sampled_from("az07")).map("".join)
devices = st.dictionaries(device_names, edits.filter(lambda e: e.device_nodes or e.env), min_size=1, max_size=3)


@settings(max_examples=50)
@given(devices, edits)
def test_whatever_is_rendered_fits_the_schema(devices, common):
    cdi_schema.check(json.loads(render(KIND, devices, common)))


@settings(max_examples=50)
@given(devices, edits)
def test_no_lower_version_carries_the_same_fields(devices, common):
    document = json.loads(render(KIND, devices, common))
    released = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0"]
    for lower in released[: released.index(document["cdiVersion"])]:
        with pytest.raises(AssertionError):
            cdi_schema.check(document | {"cdiVersion": lower})


@settings(max_examples=50)
@given(devices, edits)
def test_the_same_edits_give_the_same_bytes_in_any_order(devices, common):
    backwards = dict(reversed(devices.items()))
    assert render(KIND, devices, common) == render(KIND, backwards, common)


@settings(max_examples=50)
@given(devices, edits)
def test_every_edit_is_in_the_document(devices, common):
    document = json.loads(render(KIND, devices, common))
    assert [d["name"] for d in document["devices"]] == sorted(devices)
    pairs = [(devices[d["name"]], d["containerEdits"]) for d in document["devices"]]
    for part, wire in [(common, document["containerEdits"]), *pairs]:
        assert wire.get("env", []) == list(part.env)
        assert [(n["path"], n.get("hostPath", ""), n["major"], n["minor"]) for n in wire.get("deviceNodes", [])] == [
            (n.path, n.host_path, n.major, n.minor) for n in part.device_nodes
        ]
        assert [(m["hostPath"], m["containerPath"]) for m in wire.get("mounts", [])] == [
            (m.host_path, m.container_path) for m in part.mounts
        ]
        assert [h["path"] for h in wire.get("hooks", [])] == [h.path for h in part.hooks]
        assert wire.get("additionalGids", []) == sorted(set(part.additional_gids) - {0})


@pytest.mark.parametrize(
    ("name", "part", "class_", "version"),
    [
        ("gpu", Edits(device_nodes=(DeviceNode("/dev/nvidia0", 195, 0),)), "claim", "0.3.0"),
        ("7f-gpu", NODE, "claim", "0.5.0"),
        ("gpu", Edits(device_nodes=(DeviceNode("/dev/nvidia0", 195, 0, host_path="/x/nvidia0"),)), "claim", "0.5.0"),
        ("gpu", Edits(device_nodes=(DeviceNode("/dev/nvidia0", 195, 0, gid=44),)), "claim", "0.3.0"),
        ("gpu", NODE, "gpu.claim", "0.6.0"),
        ("gpu", Edits(env=("A=b",), additional_gids=(44,)), "claim", "0.7.0"),
        ("gpu", Edits(env=("A=b",), additional_gids=(0,)), "claim", "0.3.0"),
    ],
)
def test_the_version_is_the_lowest_that_has_every_field(name, part, class_, version):
    document = json.loads(render(f"k8s.gpu.nvidia.com/{class_}", {name: part}, Edits()))
    assert document["cdiVersion"] == version
    cdi_schema.check(document)


def test_nodes_get_read_and_write_but_not_mknod():
    document = json.loads(render(KIND, {"gpu": NODE}, Edits()))
    assert document["devices"][0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "permissions": "rw"}
    ]


@pytest.mark.parametrize(
    ("kind_", "names"),
    [
        ("k8s.gpu.nvidia.com", ["gpu"]),
        ("8s.gpu.nvidia.com/claim", ["gpu"]),
        ("k8s.gpu.nvidia.com/", ["gpu"]),
        ("k8s.gpu.nvidia.com/claim/x", ["gpu"]),
        ("k8s.gpu nvidia/claim", ["gpu"]),
        ("a" * 254 + "/claim", ["gpu"]),
        ("k8s.gpu.nvidia.com/" + "c" * 64, ["gpu"]),
        (KIND, []),
        (KIND, ["../gpu"]),
        (KIND, ["gpu-"]),
        (KIND, ["gpu", "a b"]),
    ],
)
def test_names_that_runtimes_refuse_are_refused(kind_, names):
    with pytest.raises(PrepareError) as caught:
        render(kind_, dict.fromkeys(names, NODE), Edits())
    assert caught.value.code == "prepare.cdi-invalid"


def test_a_device_without_edits_is_refused():
    with pytest.raises(PrepareError, match="no edits"):
        render(KIND, {"gpu": Edits()}, NODE)


def test_the_schema_itself_is_valid_and_refuses_unknown_fields():
    jsonschema.Draft202012Validator.check_schema(cdi_schema._SCHEMA)
    document = json.loads(render(KIND, {"gpu": NODE}, Edits()))
    with pytest.raises(AssertionError, match="privileged"):
        cdi_schema.check(document | {"privileged": True})


def test_file_names_and_ids_hold_the_driver_the_claim_and_the_device():
    assert claim_file("gpu.nvidia.com", "7f") == "k8s.gpu.nvidia.com-claim_7f.json"
    assert device_id("gpu.nvidia.com", "7f", "gpu-0000-65-00-0") == "k8s.gpu.nvidia.com/claim=7f-gpu-0000-65-00-0"
    assert device_name("7f", "gpu-0", "s1") == "7f-gpu-0-s1"


@given(st.from_regex(r"[a-z0-9-]{1,36}", fullmatch=True))
def test_the_uid_is_read_back_from_the_file_name_of_the_same_driver(uid):
    assert claim_uid_of("gpu.nvidia.com", claim_file("gpu.nvidia.com", uid)) == uid
    assert claim_uid_of("gpu.example.com", claim_file("gpu.nvidia.com", uid)) is None
