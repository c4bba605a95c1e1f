"""Objects with fields of the wrong type, as a faulty server might send them, over real HTTP."""

import copy

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.kube.answers import check_slice
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, StaticToken
from tests.kube.support.http_script import ScriptedServer

CLAIM = {
    "metadata": {"name": "claim", "namespace": "team", "uid": "1", "labels": None},
    "spec": {"devices": {"requests": [{"name": "gpu"}]}},
    "status": {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "p", "device": "gpu-0"}]}},
        "reservedFor": [{"resource": "pods", "name": "pod", "uid": "2"}],
    },
}
SLICE = {
    "metadata": {"name": "a", "uid": "1", "resourceVersion": "5"},
    "spec": {
        "driver": "d",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": None}],
    },
}
WRONG = ([], {}, "x", 5, None, [[]], [5], ["x"])


def api(server: ScriptedServer) -> KubeApi:
    return KubeApi(Credentials(server.url, StaticToken()))


def with_field(wire: dict, path: str, value: object) -> dict:
    changed = copy.deepcopy(wire)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    parent = changed
    for part in way:
        parent = parent[part]
    parent[last] = value
    return changed


def test_a_correct_object_passes():
    with ScriptedServer(lambda e: e.answer(200, CLAIM)) as server:
        assert api(server).get_claim("team", "claim") == CLAIM
    check_slice(SLICE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata", []),
        ("metadata", None),
        ("metadata.uid", 5),
        ("metadata.uid", None),
        ("spec", "x"),
        ("status", []),
        ("status.allocation", [1]),
        ("status.allocation.devices", "x"),
        ("status.allocation.devices.results", {"0": {}}),
        ("status.allocation.devices.results.0", "gpu"),
        ("status.allocation.devices.results.0.device", {"name": "gpu-0"}),
        ("status.allocation.devices.results.0.pool", None),
        ("status.allocation.devices.results.0.adminAccess", "yes"),
        ("status.reservedFor", {}),
        ("status.reservedFor.0", None),
    ],
)
def test_a_claim_with_a_field_of_another_type_is_an_error_that_names_it(path, value):
    with ScriptedServer(lambda e: e.answer(200, with_field(CLAIM, path, value))) as server:
        client = api(server)
        with pytest.raises(ApiError) as caught:
            client.get_claim("team", "claim")
    assert (caught.value.code, caught.value.retry) == ("api.bad-answer", Retry.NOW)
    assert path.rpartition(".")[2].removesuffix("0") in caught.value.message
    assert "team/claim" in caught.value.message


@pytest.mark.parametrize("field", ["name", "namespace"])
def test_an_answer_about_another_claim_is_an_error(field):
    with ScriptedServer(lambda e: e.answer(200, with_field(CLAIM, f"metadata.{field}", "other"))) as server:
        client = api(server)
        with pytest.raises(ApiError, match="asked for ResourceClaim team/claim"):
            client.get_claim("team", "claim")


@pytest.mark.parametrize("answer", [{}, {"metadata": []}, {"metadata": {"name": "n1", "uid": 5}}, {"metadata": {}}])
def test_an_answer_that_is_not_a_node_is_an_error(answer):
    with ScriptedServer(lambda e: e.answer(200, answer)) as server:
        client = api(server)
        with pytest.raises(ApiError, match="Node n1"):
            client.get_node("n1")


@pytest.mark.parametrize(
    "path",
    [
        "metadata",
        "metadata.resourceVersion",
        "spec",
        "spec.driver",
        "spec.pool",
        "spec.devices.0",
        "spec.devices.0.name",
    ],
)
def test_a_slice_with_a_field_of_another_type_is_a_clear_error(path):
    was = SLICE
    for part in path.split("."):
        was = was[int(part) if part.isdigit() else part]
    for value in (wrong for wrong in WRONG if type(wrong) is not type(was)):
        with pytest.raises(ApiError, match="ResourceSlice"):
            check_slice(with_field(SLICE, path, value))


def test_true_is_not_a_whole_number():
    with pytest.raises(ApiError, match="a whole number"):
        check_slice(with_field(SLICE, "spec.pool.generation", True))
