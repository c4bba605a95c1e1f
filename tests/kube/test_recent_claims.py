"""Claims that are read again: the server is asked each time, and only an answer that differs is parsed again."""

import copy
import json

import pytest

from dra_driver.kube import recent_claims
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials.kubeconfig import Credentials
from dra_driver.kube.credentials.tokens import StaticToken
from dra_driver.model.errors import ApiError
from tests.kube.support.http_script import ScriptedServer


def claim(version: str, **status: object) -> dict:
    return {
        "metadata": {"name": "claim", "namespace": "team", "uid": "1", "resourceVersion": version},
        "status": status,
    }


class Answers:
    """A script that gives one answer after the other, and then the last one again and again."""

    def __init__(self, *answers: tuple[int, dict]) -> None:
        self.left, self.count = list(answers), 0

    def __call__(self, exchange: object) -> None:
        self.count += 1
        status, body = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        exchange.answer(status, body)


def test_the_same_bytes_give_the_same_claim_although_the_server_is_asked_again() -> None:
    answers = Answers((200, claim("5")))
    with ScriptedServer(answers) as server:
        api = KubeApi(Credentials(server.url, StaticToken()))
        first = api.get_claim("team", "claim")
        assert api.get_claim("team", "claim") is first
        assert answers.count == 2


def test_a_changed_claim_is_parsed_again_and_the_earlier_one_stays_as_it_was() -> None:
    changed = claim("6", reservedFor=[{"resource": "pods", "name": "pod", "uid": "2"}])
    with ScriptedServer(Answers((200, claim("5")), (200, changed), (200, claim("5")))) as server:
        api = KubeApi(Credentials(server.url, StaticToken()))
        first = api.get_claim("team", "claim")
        before = copy.deepcopy(first)
        assert api.get_claim("team", "claim") == changed
        assert first == before
        assert api.get_claim("team", "claim") == claim("5")


def test_a_claim_that_is_gone_or_malformed_is_an_error_although_it_was_read_before() -> None:
    wrong = claim("5", allocation=[1])
    answers = Answers((200, claim("5")), (404, {"kind": "Status", "reason": "NotFound"}), (200, wrong), (200, wrong))
    with ScriptedServer(answers) as server:
        api = KubeApi(Credentials(server.url, StaticToken()))
        api.get_claim("team", "claim")
        with pytest.raises(ApiError, match="404"):
            api.get_claim("team", "claim")
        for _ in range(2):
            with pytest.raises(ApiError, match="should be an object"):
                api.get_claim("team", "claim")


def test_a_long_claim_is_not_kept() -> None:
    long = claim("5", devices=[{"data": "x" * recent_claims.MAX_BYTES}])
    assert len(json.dumps(long)) > recent_claims.MAX_BYTES
    with ScriptedServer(Answers((200, long))) as server:
        api = KubeApi(Credentials(server.url, StaticToken()))
        first = api.get_claim("team", "claim")
        again = api.get_claim("team", "claim")
        assert again == first
        assert again is not first
