"""docs/profiles.md agrees with the decoder."""

import re
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import InputError
from dra_driver.base.text.json_text import Fields
from dra_driver.hardware.simulated import load_profile, profile_names
from dra_driver.hardware.simulated.models import decode_model
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.node.devices.build import build_inventory

PAGE = (Path(__file__).parents[3] / "docs" / "profiles.md").read_text()


def test_the_example_on_the_page_is_a_valid_profile(tmp_path):
    path = tmp_path / "desk.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    profile = load_profile(path)
    assert len(build_inventory(facts_of(profile, "desk-1")).devices) == 3
    assert profile.node_name_of(1) == "desk-1"


def test_every_shipped_profile_is_named_on_the_page():
    assert all(f"`{name}`" in PAGE for name in profile_names())


def known_fields(faults: list[str]) -> set[str]:
    return {name for fault in faults for name in re.search(r"known here: (.*)\)", fault)[1].split(", ")}


def test_every_field_that_is_read_is_on_the_page(tmp_path):
    path = tmp_path / "probe.yaml"
    gpu = {"pci": "0000:01:00.0", "model": "l40s", "x": 1}
    foreign = {"driver": "dra.net", "x": 1, "devices": [{"name": "a", "x": 1}]}
    path.write_text(yaml.safe_dump({"about": "a", "x": 1, "gpus": [gpu], "foreign": [foreign]}))
    with pytest.raises(InputError) as caught:
        load_profile(path)
    faults = caught.value.message.splitlines()[1:]
    assert len(faults) == 4
    row = {"name": "1g.6gb", "nvml": "1_SLICE", "compute": 1, "slices": 1, "max": 1, "x": 1}
    mig = {"memorySlices": 4, "computeSlices": 4, "profiles": [row], "x": 1}
    decode_model(Fields({"productName": "a", "migCapable": True, "mig": mig, "x": 1}, "", model_faults := []))
    assert len(model_faults) == 3
    missing = {name for name in known_fields(faults + model_faults) if f"`{name}`" not in PAGE}
    assert not missing
