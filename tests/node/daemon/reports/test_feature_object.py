"""Labels of the node in an object for Node Feature Discovery: applied on a change, left alone where refused."""

from __future__ import annotations

import base64
import json

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.node.daemon.node_labels import REFRESH_SECONDS, FeatureObject

LABELS = {"nvidia.com/gpu.count": "8"}
PATH = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpus/nodefeatures/gpu.nvidia.com-n1"


def token(claims: object) -> str:
    """Return the header of a token with these claims; its signature is not checked here."""
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"Bearer e30.{payload}.c2ln"


class Server:
    """An API server that keeps NodeFeatures, or refuses them."""

    header = token({"kubernetes.io": {"serviceaccount": {"name": "dra-driver-agent", "uid": "u-1"}}})
    refusal: ApiError | None = None

    def __init__(self) -> None:
        self.applied: list[dict] = []

    def authorization(self) -> str:
        return self.header

    def request(self, method: str, path: str, *, body: dict, query: dict, content_type: str) -> dict:
        assert (method, path, content_type) == ("PATCH", PATH, "application/apply-patch+yaml")
        assert query == {"fieldManager": "dra-driver gpu.nvidia.com", "force": "true"}
        self.applied.append(body)
        if self.refusal:
            raise self.refusal
        return body


class Node:
    """A node with labels and a clock."""

    labels: dict[str, str] | None = LABELS
    time = 0.0

    def now(self) -> dict[str, str] | None:
        return self.labels

    def __init__(self) -> None:
        self.server = Server()
        self.object = FeatureObject(
            self.server,
            self,
            node="n1",
            driver="gpu.nvidia.com",
            namespace="gpus",
            clock=lambda: self.time,
        )


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_object_names_the_node_and_is_owned_by_the_service_account(node: Node) -> None:
    assert node.object.tidy() == 1
    (body,) = node.server.applied
    assert body == {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": "gpu.nvidia.com-n1",
            "labels": {"nfd.node.kubernetes.io/node-name": "n1"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ServiceAccount", "name": "dra-driver-agent", "uid": "u-1"},
            ],
        },
        "spec": {"labels": LABELS, "features": {"flags": {}, "attributes": {}, "instances": {}}},
    }


@pytest.mark.parametrize(
    "header",
    ["", "Bearer opaque", "Bearer a.b", "Bearer a.%%%.c", token([]), token({"kubernetes.io": 1}), token(None)],
)
def test_a_token_that_names_no_account_makes_an_object_without_an_owner(node: Node, header: str) -> None:
    node.server.header = header
    node.object.tidy()
    assert "ownerReferences" not in node.server.applied[0]["metadata"]


def test_the_same_labels_are_applied_again_about_once_an_hour(node: Node) -> None:
    node.object.tidy()
    node.time = REFRESH_SECONDS * 0.7
    assert node.object.tidy() == 0
    assert len(node.server.applied) == 1
    node.time = REFRESH_SECONDS * 1.3
    assert node.object.tidy() == 0, "they are the same"
    assert len(node.server.applied) == 2


def test_changes_are_applied_at_once_and_unknown_labels_change_nothing(node: Node) -> None:
    node.object.tidy()
    node.labels = None
    assert node.object.tidy() == 0
    assert len(node.server.applied) == 1
    node.labels = {"nvidia.com/gpu.count": "7"}
    assert node.object.tidy() == 1
    node.labels = {}
    assert node.object.tidy() == 1
    assert node.server.applied[-1]["spec"]["labels"] == {}, "a node without GPUs loses the labels"


@pytest.mark.parametrize("status", [403, 404, 422])
def test_a_server_without_the_kind_or_the_right_is_asked_again_after_an_hour(node: Node, caplog, status: int) -> None:
    node.server.refusal = ApiError("refused", "no", status=status, retry=Retry.LATER if status < 422 else Retry.NEVER)
    for _ in range(3):
        assert node.object.tidy() == 0
    assert len(node.server.applied) == 1
    assert len(caplog.records) == 1
    node.server.refusal = None
    node.time = REFRESH_SECONDS * 1.3
    assert node.object.tidy() == 1


def test_a_server_that_does_not_answer_is_asked_again_in_the_next_minute(node: Node) -> None:
    node.server.refusal = ApiError("unreachable", "no", retry=Retry.NOW)
    with pytest.raises(ApiError):
        node.object.tidy()
    node.server.refusal = None
    assert node.object.tidy() == 1
