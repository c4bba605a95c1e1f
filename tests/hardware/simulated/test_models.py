import json
import os
import re
from pathlib import Path

import pytest

from dra_driver.base.text.json_text import Fields
from dra_driver.base.text.yaml_values import read_document
from dra_driver.hardware.simulated.models import FOLDER, decode_model, model_names, read_model
from dra_driver.hardware.simulated.profile import FOLDER as PROFILES
from dra_driver.hardware.simulated.profile import profile_names

SHARED = Path(os.environ.get("DRA_SHARED", Path(__file__).parents[4] / "shared"))
FACTS = SHARED / "hardware" / "gpu-facts.json"


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_model_is_read_without_faults(name):
    faults = []
    model = read_model(name, faults)
    assert not faults
    assert model.product_name
    assert model.memory_mib


@pytest.mark.parametrize("name", model_names())
def test_every_figure_of_a_shipped_model_names_a_listed_source(name):
    text = (FOLDER / f"{name}.yaml").read_text()
    document = read_document(FOLDER / f"{name}.yaml")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", document["lookedUp"])
    figures = [line for line in text.splitlines() if re.match(r"(?!lookedUp)[a-z]\w+: \S", line)]
    assert figures
    for line in figures:
        named = re.split(r", ", line.rpartition("  # ")[2].partition(";")[0])
        assert set(named) <= document["sources"].keys(), line


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_says_where_its_figures_come_from_and_when(name):
    document = read_document(PROFILES / f"{name}.yaml")
    assert document["sources"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", document["lookedUp"])
    assert any("driver" in text for text in document["invented"])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"memoryMiB": "80Gi"}, "model.memoryMiB: expected a whole number from 1 to 16777216, got '80Gi'"),
        ({"memoryMiB": True}, "model.memoryMiB: expected a whole number from 1 to 16777216, got true"),
        ({"nvlinks": -1}, "model.nvlinks: expected a whole number from 0 to 64, got -1"),
        ({"migCapable": "maybe"}, "model.migCapable: expected true or false, got 'maybe'"),
        ({"productName": None}, "model.productName: missing, expected a string"),
        ({"wattage": 3}, "model.wattage: unknown field"),
        ({"computeCapability": "9"}, "model.computeCapability: expected such as 9.0, got '9'"),
        ({"migCapable": False}, "model.migCapable: must be true where a mig table is given"),
        ({"mig": []}, "model.mig: expected named fields, got a list"),
        ({"sources": {"smi": 3}}, "model.sources.smi: expected the source as a string"),
    ],
)
def test_a_faulty_model_is_refused_with_the_path_of_the_field(change, fault):
    faults = []
    document = read_document(FOLDER / "h100-sxm5-80gb.yaml")
    decode_model(Fields(document | change, "model", faults))
    assert any(found.startswith(fault) for found in faults), faults


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"engines": [1, 2]}, "mig.profiles[0].engines: expected five numbers"),
        ({"engines": [1, 2, 3, 4, "x"]}, "mig.profiles[0].engines[4]: expected a number"),
        ({"starts": [0, 8]}, "mig.profiles: profile 1g.10gb starts beyond 8 memory slices"),
        ({"name": "2g.20gb"}, "mig.profiles: profile 2g.20gb is listed 2 times"),
        ({"slices": 0}, "mig.profiles[0].slices: expected a whole number from 1 to 16, got 0"),
    ],
)
def test_a_faulty_mig_table_is_refused_with_the_path_of_the_field(change, fault):
    faults = []
    document = read_document(FOLDER / "h100-sxm5-80gb.yaml")
    document["mig"]["profiles"][0].update(change)
    decode_model(Fields(document, "", faults))
    assert any(found.startswith(fault) for found in faults), faults


def real_value(entry):
    mocks = {"mokka", "gonvmlmock", "rig"}
    return None if entry.get("mock") or not set(entry["source"]) - mocks else entry["value"]


@pytest.mark.skipif(
    not FACTS.is_file(), reason="recordings and figures beside the repository are not here (DRA_SHARED)"
)
def test_shipped_figures_are_the_reference_figures_and_none_is_a_mock():
    reference = {entry["product_name"]["value"]: entry for entry in json.loads(FACTS.read_text())["models"].values()}
    assert len(reference) == len(model_names())
    for name in model_names():
        model = read_model(name, [])
        entry = reference[model.product_name]
        assert model.memory_mib == real_value(entry["memory_total_mib"])
        assert model.power_limit_max_w == real_value(entry["max_power_w"])
        assert model.memory_bandwidth_gb_per_s == real_value(entry["memory_bandwidth_gb_s"])
        assert model.compute_capability == real_value(entry["compute_capability"]) + ".0"
        if real_value(entry["max_sm_clock_mhz"]):
            assert model.sm_clock_max_mhz == real_value(entry["max_sm_clock_mhz"])
        for row in entry.get("mig_profiles") or []:
            profile = model.mig.profile(row["name"])
            assert profile.gi_profile_id == row["gi_profile_id"]
            assert profile.memory_mib == row["memory_mib"]
            assert profile.multiprocessors == row["sms"]
            assert profile.max_instances == row["max_instances"]
            placements = row["placements"] or row["placements_inferred"]
            assert profile.starts in {tuple(placements["starts"]), ()}
            assert profile.memory_slices == placements["size"]
