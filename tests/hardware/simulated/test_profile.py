from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import ExitCode, InputError
from dra_driver.hardware.simulated import load_profile, profile_names
from dra_driver.hardware.simulated.profile import FOLDER

SMALL = {
    "about": "one H100",
    "driverVersion": "580.105.06",
    "cudaDriverVersion": "13.0",
    "gpus": [{"pci": "0000:1b:00.0", "model": "h100-sxm5-80gb"}],
}


@pytest.fixture
def load(tmp_path):
    def load_document(document):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(document))
        return load_profile(path)

    return load_document


def faults_of(load, document) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(document)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    return [line.strip() for line in caught.value.message.splitlines()[1:]]


def test_the_shipped_profiles_are_there():
    assert {"dgx-a100", "dgx-h100", "hgx-h200", "gb200-tray", "l40s", "t4", "mixed", "demo-h100"} == set(
        profile_names()
    )


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads_by_name_and_by_path(name):
    assert load_profile(name) == load_profile(FOLDER / f"{name}.yaml")
    assert load_profile(name).name == name


def test_the_demo_node_has_eight_h100_two_of_them_partitioned():
    gpus = load_profile("demo-h100").gpus
    assert {gpu.model.product_name for gpu in gpus} == {"NVIDIA H100 80GB HBM3"}
    assert [gpu.mig is not None for gpu in gpus] == [False] * 6 + [True] * 2


def test_the_mixed_node_has_several_models_and_foreign_devices_below_the_roots_of_gpus():
    profile = load_profile("mixed")
    assert len({gpu.model.product_name for gpu in profile.gpus}) >= 4
    roots = {gpu.pcie_root for gpu in profile.gpus}
    (foreign,) = profile.foreign
    assert foreign.driver == "dra.net"
    for device in foreign.devices:
        assert device["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] in roots


def test_a_profile_needs_only_four_fields(load):
    profile = load(SMALL)
    (gpu,) = profile.gpus
    assert (gpu.minor, gpu.numa_node, gpu.pcie_root, gpu.mig) == (0, None, None, None)
    assert (profile.driver_version, profile.cuda_driver_version) == ("580.105.6", "13.0.0")
    assert profile.node_name_of(3) == "mine-3"


def test_gpu_defaults_apply_to_every_gpu_that_does_not_override_them(load):
    profile = load(
        SMALL
        | {
            "gpuDefaults": {"model": "t4", "numaNode": 1},
            "gpus": [{"pci": "0000:01:00.0"}, {"pci": "0000:02:00.0", "numaNode": 0, "model": "l40s"}],
        }
    )
    assert [(gpu.numa_node, gpu.model.product_name) for gpu in profile.gpus] == [(1, "Tesla T4"), (0, "NVIDIA L40S")]


def test_a_profile_may_bring_models_of_its_own(load):
    own = {"productName": "NVIDIA X1", "architecture": "Rubin", "nvlinks": 4}
    profile = load(SMALL | {"models": {"x1": own}, "gpus": [{"pci": "0000:01:00.0", "model": "x1"}]})
    assert profile.gpus[0].model.memory_mib is None
    assert profile.gpus[0].model.architecture == "Rubin"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpu": []}, "gpu: unknown field (known here: about, addressingMode,"),
        ({"about": None}, "about: missing, expected a string"),
        ({"driverVersion": "newest"}, "driverVersion: expected a version such as 580.126.20, got 'newest'"),
        ({"addressingMode": "hmm"}, "addressingMode: expected ATS, HMM or None, got 'hmm'"),
        ({"nodeName": "Node {n}"}, "nodeName: expected a node name, {n} for its number, got 'Node {n}'"),
        ({"gpus": {"pci": "x"}}, "gpus: expected a list, got named fields"),
        ({"gpus": ["h100"]}, "gpus[0]: expected named fields, got 'h100'"),
        ({"models": {"x1": {"watts": 3}}}, "models.x1.watts: unknown field"),
        ({"foreign": [{"driver": "Dra_Net"}]}, "foreign[0].driver: driver name 'Dra_Net' is not a DNS subdomain"),
    ],
)
def test_a_faulty_profile_is_refused_with_the_path_of_the_field(load, change, fault):
    assert any(found.startswith(fault) for found in faults_of(load, SMALL | change))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"pci": "1b:00.0"}, "pci: expected a PCI address such as 0000:1b:00.0, got '1b:00.0'"),
        ({"pci": None}, "pci: missing, expected a PCI address"),
        ({"model": "h100"}, "model: no model 'h100' (there are a100-sxm4-40gb,"),
        ({"minor": -1}, "minor: expected a whole number from 0 to 4095, got -1"),
        ({"numaNode": "0"}, "numaNode: expected a whole number from 0 to 4095, got '0'"),
        ({"pcieRoot": "0000:15"}, "pcieRoot: expected a PCIe root such as pci0000:16, got '0000:15'"),
        ({"linksUp": 19}, "linksUp: 19 links are up, but the card has 18"),
        ({"nvlinkFabric": "rack 7"}, "nvlinkFabric: expected <cluster UUID>.<clique id>, got 'rack 7'"),
        ({"lost": "yes"}, "lost: expected true or false, got 'yes'"),
        ({"colour": "bad"}, "colour: unknown field"),
        ({"mig": "all-balanced"}, "mig: expected a list, got 'all-balanced'"),
        ({"mig": [{"profile": "1g.5gb", "start": 0}]}, "mig[0].profile: NVIDIA H100 80GB HBM3 has no profile '1g.5gb'"),
        ({"mig": [{"profile": "3g.40gb"}]}, "mig[0].start: missing, expected a whole number from 0 to 15"),
        ({"mig": [{"profile": "3g.40gb", "start": 1}]}, "mig[0]: a 3g.40gb starts at one of [0, 4], not at 1"),
        ({"mig": [{"profile": "1g.10gb", "start": 0, "id": 3}]}, "mig[0].id: unknown field"),
        ({"model": "t4", "mig": []}, "mig: Tesla T4 can't be partitioned"),
        ({"model": "b200", "mig": [{"profile": "3g.90gb", "start": 0}]}, "mig[0].profile: the figures of 3g.90gb on"),
    ],
)
def test_a_faulty_gpu_is_refused_with_the_path_of_the_field(load, change, fault):
    document = SMALL | {"gpus": [{"pci": "0000:01:00.0", "model": "l40s"}, SMALL["gpus"][0] | change]}
    found = faults_of(load, document)
    assert any(line.startswith(f"gpus[1].{fault}") for line in found), found


def test_overlapping_partitions_are_refused(load):
    partitions = [{"profile": "3g.40gb", "start": 0}, {"profile": "2g.20gb", "start": 2}]
    found = faults_of(load, SMALL | {"gpus": [SMALL["gpus"][0] | {"mig": partitions}]})
    assert found == ["gpus[0].mig[1]: 2g.20gb at 2 overlaps 3g.40gb at 0"]


def test_two_gpus_with_one_address_or_minor_are_refused(load):
    gpus = [SMALL["gpus"][0], SMALL["gpus"][0] | {"minor": 0}]
    found = faults_of(load, SMALL | {"gpus": gpus})
    assert found == ["gpus: 2 GPUs have pci 0000:1b:00.0", "gpus: 2 GPUs have minor 0"]


def test_all_faults_are_reported_at_once(load):
    gpus = [{"pci": 7, "model": "none"}, {"pci": "0000:01:00.0", "lost": 3}]
    found = faults_of(load, {"gpus": gpus, "color": "green"})
    assert {line.partition(":")[0] for line in found} == {
        "about",
        "color",
        "gpus[0].pci",
        "gpus[0].model",
        "gpus[1].model",
        "gpus[1].lost",
    }


def test_the_error_about_a_name_that_is_neither_profile_nor_file_lists_the_profiles():
    with pytest.raises(InputError, match="shipped profiles: demo-h100, dgx-a100") as caught:
        load_profile("dgx-h900")
    assert caught.value.code == "input.no-profile"


def foreign(**changes):
    device = {"name": "nic-0", "attributes": {"dra.net/rdma": True}, "capacity": {"bandwidth": "400G"}} | changes
    return SMALL | {"foreign": [{"driver": "dra.net", "devices": [device]}]}


def test_foreign_devices_are_in_wire_form(load):
    attributes = {
        "dra.net/rdma": True,
        "mtu": 9000,
        "fw": {"version": "28.41.1000"},
        "resource.kubernetes.io/pcieRoot": "pci0000:15",
    }
    ((device,),) = (
        driver.devices for driver in load(foreign(attributes=attributes, capacity={"bandwidth": "0.4T"})).foreign
    )
    assert device == {
        "name": "nic-0",
        "attributes": {
            "dra.net/rdma": {"bool": True},
            "mtu": {"int": 9000},
            "fw": {"version": "28.41.1000"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
        },
        "capacity": {"bandwidth": {"value": "400G"}},
    }


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "NIC_0"}, "name: 'NIC_0' is not a DNS label"),
        ({"attributes": {"dra.net/a-b": 1}}, "attributes.dra.net/a-b: expected a name, or domain/name"),
        ({"attributes": {"x": "y" * 65}}, "attributes.x: expected a string of at most 64 bytes"),
        ({"attributes": {"x": {"version": "1.2"}}}, "attributes.x: '1.2' is not a semantic version"),
        ({"attributes": {"x": 2**63}}, "attributes.x: 9223372036854775808 does not fit into 64 bits"),
        ({"attributes": {"x": [1]}}, "attributes.x: expected a string"),
        ({"attributes": {f"x{n}": n for n in range(32)}}, "attributes: more than 32 attributes and capacities"),
        ({"capacity": {"bandwidth": "fast"}}, "capacity.bandwidth: 'fast' is not a quantity"),
    ],
)
def test_a_faulty_foreign_device_is_refused_with_the_path_of_the_field(load, change, fault):
    found = faults_of(load, foreign(**change))
    assert any(line.startswith(f"foreign[0].devices[0].{fault}") for line in found), found


WORDS = """gpus mig model models pci foreign devices attributes capacity profile start about engines profiles
    productName gpuDefaults sources h100-sxm5-80gb 1g.10gb 0000:1b:00.0 name driver lost"""
words = st.sampled_from(WORDS.split())
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 20) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
    max_leaves=20,
)


@settings(deadline=None)
@given(anything | st.dictionaries(words, anything, max_size=8))
def test_any_document_is_a_profile_or_bad_input(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("profiles") / "any.yaml"
    path.write_text(yaml.safe_dump(document))
    with suppress(InputError):
        assert load_profile(path).name == "any"
