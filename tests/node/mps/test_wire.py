"""Messages: what is written is read again; garbage is refused with a reason and causes no crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.base.errors import DriverError, Retry, SharingError
from dra_driver.base.wire import MpsSettings, SharedDevice
from dra_driver.node.claims.config_schema import MAX_LIMIT
from dra_driver.node.mps import client

GPU = "GPU-12345678-1234-1234-1234-123456789abc"
MIG = "MIG-12345678-1234-1234-1234-123456789abc"
DEVICE = SharedDevice("gpu-0000-65-00-0", GPU, 0, "0000:65:00.0", MIG)
START = {
    "version": 1,
    "command": "start",
    "device": client.device_wire(DEVICE),
    "settings": client.settings_wire(MpsSettings()),
    "deadlineS": 5,
}
MOST = int(MAX_LIMIT.value)  # what a config may ask for
limits = st.none() | st.integers(0, MOST)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.builds(
        MpsSettings,
        active_thread_percentage=st.none() | st.integers(0, 100),
        pinned_memory_limit=limits,
        per_device_limits=st.dictionaries(st.sampled_from([GPU, MIG, "0"]), st.integers(0, MOST)),
        multi_user=st.booleans(),
        across_namespaces=st.booleans(),
    )
)
@example(MpsSettings(pinned_memory_limit=MOST, per_device_limits={"0": MOST}))
def test_settings_are_received_as_they_were_sent(settings: MpsSettings):
    request = client.request_of(client.line_of({**START, "settings": client.settings_wire(settings)}))
    assert (request.command, request.device, request.settings) == ("start", DEVICE, settings)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_refused(line: bytes):
    with pytest.raises(DriverError) as refused:
        client.request_of(line)
    assert refused.value.code == "sharing.mps-bad-request"


@given(st.sampled_from(sorted(START)), json_values)
def test_a_field_with_any_value_is_refused_or_accepted_and_causes_no_crash(field: str, value: Any):
    try:
        request = client.request_of(client.line_of({**START, field: value}))
    except DriverError as error:
        assert error.code == "sharing.mps-bad-request"  # noqa: PT017 - both outcomes are fine
    else:
        assert request.deadline_s > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": "format-disk"}, "not one of start, stop, status, tidy, list"),
        ({"command": ["start"]}, "not one of"),
        ({"version": 2}, "upgrade the older one"),
        ({"version": True}, "upgrade the older one"),
        ({"surprise": 1}, "does not know"),
        ({"device": {**START["device"], "gpuUUID": "../../etc"}}, "gpuUUID"),
        ({"device": {**START["device"], "name": "a/b"}}, "name"),
        ({"device": {**START["device"], "name": "gpu\n"}}, "name"),
        ({"device": {**START["device"], "migUUID": "MIG-1;reboot"}}, "migUUID"),
        ({"settings": {**START["settings"], "activeThreadPercentage": 101}}, "0 to 100"),
        ({"settings": {**START["settings"], "activeThreadPercentage": "50; quit"}}, "activeThreadPercentage"),
        ({"settings": {**START["settings"], "pinnedMemoryLimit": -1}}, "pinnedMemoryLimit"),
        ({"settings": {**START["settings"], "multiUser": 1}}, "multiUser"),
        ({"settings": {**START["settings"], "newer": 1}}, "does not know"),
        ({"deadlineS": 0}, "deadlineS"),
        ({"deadlineS": 1e9}, "deadlineS"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], words: str):
    with pytest.raises(DriverError) as refused:
        client.request_of(client.line_of({**START, **change}))
    assert words in str(refused.value)


def test_an_error_is_received_as_it_was_sent():
    fault = SharingError("mps-busy", "what", hint="how", retry=Retry.NOW)
    received = client.error_of(json.loads(client.line_of(client.error_wire(fault))))
    assert (received.code, received.message, received.hint, received.retry) == (fault.code, "what", "how", Retry.NOW)


@given(json_values)
def test_any_answer_can_be_read_as_an_error(value: Any):
    assert client.error_of(value).code.startswith("sharing.")
