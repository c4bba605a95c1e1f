"""Manifests with odd values are migrated or refused with the name of the file, and a second run changes nothing."""

from __future__ import annotations

import copy
import json

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import InputError
from dra_driver.tools.migrate import SourceText, migrate
from tests.support.migrate_shapes import SHAPES

JUNK = [
    None,
    0,
    -1,
    "",
    True,
    3.5,
    "x",
    "nvidia.com/gpu",
    [],
    {},
    [[]],
    [None],
    ["x"],
    [{}],
    {"a": 1},
    {"nvidia.com/gpu": 1},
]


def places(value):
    """Yield every place in a value as the mapping or list and the key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from places(inner)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_manifest_with_odd_values_is_migrated_or_refused_with_the_name_of_the_file(data):
    shape = data.draw(st.sampled_from(SHAPES), label="shape")
    documents = json.loads(json.dumps([one for one in yaml.safe_load_all(shape.read_text()) if one]))
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(documents))
        holder, key = found[data.draw(st.integers(0, len(found) - 1))]
        holder[key] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
    style = data.draw(st.sampled_from([None, False, True]))
    text = "---\n".join(yaml.safe_dump(one, sort_keys=False, default_flow_style=style) for one in documents)
    fault = None
    try:
        (once,) = migrate([SourceText("odd.yaml", text)])
        (twice,) = migrate([SourceText("odd.yaml", once.new)])
    except InputError as refused:
        fault = refused
    if fault is not None:
        assert "odd.yaml" in fault.message
    else:
        assert twice.new == once.new
