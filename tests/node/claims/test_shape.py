"""Claims with any value in any place, as an API server may send them: each is harmless or refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError
from dra_driver.node.claims.allocated import AllocatedClaim, decode_claim
from dra_driver.node.ledger.record import record_of_claim

DRIVER, UID = "gpu.nvidia.com", "0f3c1d7e-8a52-4c3b-9d1e-2b6f7a8c9d0e"
CLAIM: dict[str, Any] = {
    "metadata": {"namespace": "team-a", "name": "it", "uid": UID},
    "status": {
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "1d7e"}],
        "allocation": {
            "devices": {
                "results": [
                    {"request": "gpu/sub", "driver": DRIVER, "pool": "n/gpu.nvidia.com", "device": "gpu-0"},
                    {
                        "request": "share",
                        "driver": DRIVER,
                        "pool": "n/gpu.nvidia.com",
                        "device": "gpu-1",
                        "shareID": "2b6f",
                        "consumedCapacity": {"memory": "8Gi"},
                        "adminAccess": False,
                    },
                ],
                "config": [
                    {
                        "source": "FromClass",
                        "requests": ["gpu"],
                        "opaque": {
                            "driver": DRIVER,
                            "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"},
                        },
                    }
                ],
            }
        },
    },
}
HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 1e308, 10**400, "", "x" * 100_000, "../../etc/passwd", "/etc/shadow", "a\0b", "\ud800"),
    *([], {}, [[]], [None], {"a": 1}, ["x"], {"": None}, [1] * 10_000, "1e999999999", "9" * 5000, "-5", [{}] * 300),
    *("gpu-0-share-99999999999999999999", "GPU-0", "gpu-0/../gpu-1", ".", "..", "a" * 64, "n/\n", "é"),
]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def with_value(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(CLAIM)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def decode(claim: Any) -> AllocatedClaim | None:
    message = ""
    try:
        return decode_claim(claim, driver=DRIVER, uid=UID)
    except ClaimError as error:
        message = str(error)
    assert len(message) < 8_000
    return None


def test_a_claim_as_kubernetes_stores_it_is_read() -> None:
    claim = decode(CLAIM)
    assert claim is not None
    assert [d.device for d in claim.devices] == ["gpu-0", "gpu-1"]
    assert claim.pods == ("1d7e",)


@pytest.mark.parametrize("path", list(paths(CLAIM)), ids=lambda path: ".".join(map(str, path)))
def test_any_value_at_any_place_is_refused_or_harmless(path: tuple[Any, ...]) -> None:
    for value in HOSTILE:
        claim = decode(with_value(path, value))
        if claim is None:
            continue
        json.dumps(record_of_claim(claim)).encode()
        texts = [claim.namespace, claim.name, *claim.pods]
        texts += [text for d in claim.devices for text in (d.device, d.share_id or "", d.request.replace("/", ""))]
        assert not any("/" in text or "\0" in text or ".." in text or len(text) > 253 for text in texts), texts


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "status"]), inner),
        max_leaves=5,
    )
)
def test_a_value_that_is_no_claim_is_refused(value: Any) -> None:
    assert decode(value) is None


def test_the_fault_names_the_field_and_shows_little_of_its_value() -> None:
    hostile = with_value(("status", "allocation", "devices", "results", 0, "device"), "../" * 5000)
    with pytest.raises(ClaimError) as refused:
        decode_claim(hostile, driver=DRIVER, uid=UID)
    assert refused.value.code == "claim.malformed"
    assert "at status.allocation.devices.results[0].device" in refused.value.message
    assert len(refused.value.message) < 300


def test_the_message_about_faults_of_a_config_is_short_however_many_there_are() -> None:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        **{f"{'k' * 900}{n}": n for n in range(99)},
    }
    hostile = with_value(("status", "allocation", "devices", "config", 0, "opaque", "parameters"), parameters)
    with pytest.raises(ClaimError, match="and 79 more") as refused:
        decode_claim(hostile, driver=DRIVER, uid=UID)
    assert len(str(refused.value)) < 8_000
