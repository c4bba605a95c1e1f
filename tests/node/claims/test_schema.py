"""The exported JSON schema: it is made from the models, and accepts what they accept as far as a schema can say it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.node.claims.config import validate
from dra_driver.node.claims.config_schema import json_schema
from dra_driver.node.claims.device_config import API_VERSION

PAGE = Path(__file__).resolve().parents[3] / "docs" / "device-config.schema.json"
CHECKER = jsonschema.Draft202012Validator(json_schema())


def test_the_exported_schema_is_that_of_the_models() -> None:
    assert json.loads(PAGE.read_text()) == json_schema(), "run make docs"


ODD = st.none() | st.booleans() | st.integers(-1, 101) | st.sampled_from(["", "x", "Long", "MPS"]) | st.just([])
LIMITS = st.sampled_from(["10Gi", "1Mi", 1 << 20, 1 << 40])


def parts(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with some of the fields, each with a right or an odd value, and sometimes one more."""
    optional = {name: right | ODD for name, right in fields.items()}
    return st.fixed_dictionaries({}, optional={**optional, "more": ODD})


SLICING = parts(interval=st.sampled_from(["Default", "Short", "Medium", "Long"]))
MPS = st.fixed_dictionaries(
    {},
    optional={
        "defaultActiveThreadPercentage": st.integers(-1, 101) | st.none(),
        "defaultPinnedDeviceMemoryLimit": LIMITS | st.none(),
        "defaultPerDevicePinnedMemoryLimit": st.none() | st.dictionaries(st.sampled_from(["0", "GPU-1"]), LIMITS),
        "multiUser": ODD,
    },
)
SHARING = parts(strategy=st.sampled_from(["TimeSlicing", "MPS"]), timeSlicingConfig=SLICING, mpsConfig=MPS)
CONFIG = st.fixed_dictionaries(
    {"kind": st.sampled_from(["GpuConfig", "MigDeviceConfig"]), "apiVersion": st.just(API_VERSION)},
    optional={"sharing": SHARING | ODD, "more": ODD},
)


@given(CONFIG)
def test_the_schema_accepts_exactly_what_the_node_accepts(config: dict[str, Any]) -> None:
    assert CHECKER.is_valid(config) == (not validate(config))


@given(SHARING, st.sampled_from(["GpuConfig", "MigDeviceConfig"]))
def test_every_fault_has_the_path_of_a_field_and_is_reported_once(sharing: dict[str, Any], kind: str) -> None:
    faults = validate({"kind": kind, "apiVersion": API_VERSION, "sharing": sharing}, "p")
    assert all(fault.path.startswith("p.sharing") for fault in faults)
    assert len({(fault.path, fault.message) for fault in faults}) == len(faults)
