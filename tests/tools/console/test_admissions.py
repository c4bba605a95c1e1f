"""An admission of a viewer holds for half a minute, for all requests with the same credentials, and for no others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.tools.console.cluster_reader import MAX_NAMESPACES, Rights, rights_of
from dra_driver.tools.console.events import Notices
from dra_driver.tools.console.sign_in import AdmittedViewer, PresentedIdentity
from dra_driver.tools.console.viewers import FRESH_SECONDS, Admissions


@dataclass
class Resolver:
    rights: dict[str, Rights] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    def resolve(self, one):
        self.asked.append(one.token)
        if self.is_down:
            raise ApiError("unreachable", "no answer")
        rights = self.rights.get(one.token)
        return None if rights is None else AdmittedViewer((one.digest, rights), rights, None)


@pytest.fixture
def resolver():
    return Resolver({"a": Rights(frozenset({"Node"}))})


def test_many_requests_of_one_viewer_need_one_review_and_an_unknown_viewer_is_not_admitted(resolver):
    async def requests():
        admissions = Admissions(resolver, lambda: 1000.0)
        found = await asyncio.gather(*(admissions.admit(PresentedIdentity(token)) for token in "aaaabb"))
        assert [one is not None for one in found] == [True] * 4 + [False] * 2

    asyncio.run(requests())
    assert sorted(resolver.asked) == ["a", "b"]


def test_rights_that_were_withdrawn_end_within_half_a_minute(resolver):
    async def requests():
        now = [1000.0]
        admissions = Admissions(resolver, lambda: now[0])
        before = await admissions.admit(PresentedIdentity("a"))
        resolver.rights["a"] = Rights()
        assert await admissions.admit(PresentedIdentity("a")) is before
        now[0] += FRESH_SECONDS
        after = await admissions.admit(PresentedIdentity("a"))
        assert after.rights == Rights()
        assert after.key != before.key, "the viewer would still see what was read with the old rights"

    asyncio.run(requests())


def test_an_old_admission_does_not_count_while_the_api_server_does_not_answer(resolver):
    async def requests():
        now = [1000.0]
        admissions = Admissions(resolver, lambda: now[0])
        await admissions.admit(PresentedIdentity("a"))
        resolver.is_down, now[0] = True, now[0] + FRESH_SECONDS
        with pytest.raises(ApiError):
            await admissions.admit(PresentedIdentity("a"))

    asyncio.run(requests())


def test_a_stream_ends_once_its_viewer_would_no_longer_be_admitted():
    async def listen():
        notices, may = Notices(), [True]

        async def may_continue():
            return may[0]

        notices.post("version", 1)
        seen = []
        async for piece in notices.stream(may_continue):
            seen.append(piece)
            if b"version" in piece:
                may[0] = False
                notices.post("version", 2)
        assert b"data: 1" in b"".join(seen)
        assert b"data: 2" not in b"".join(seen)
        assert notices.streams == 0

    asyncio.run(listen())


def test_rights_are_reviewed_by_namespace_only_for_kinds_that_may_not_be_read_everywhere():
    asked = []

    def may(kind, place):
        asked.append((kind.name, place))
        return kind.name == "ResourceSlice" or (kind.name, place) == ("Pod", "n3")

    rights = rights_of(may, lambda: [f"n{number}" for number in range(500)])
    assert rights == Rights(frozenset({"ResourceSlice"}), frozenset({("Pod", "n3")}))
    assert len(asked) == 6 + 3 * MAX_NAMESPACES
    assert rights.places("ResourceSlice") == ("",)
    assert rights.places("Pod") == ("n3",)
    assert not rights.sees("Pod", "n4")


@pytest.mark.parametrize("headers", [
    {"x-remote-user": "admin"},
    {"authorization": "Basic YWRtaW46"},
    {"authorization": "Bearer two words"},
    {"cookie": "other=abc"},
], ids=str)  # fmt: skip
def test_headers_without_valid_credentials_give_no_identity(headers):
    from starlette.datastructures import Headers

    from dra_driver.tools.console.sign_in import TrustedProxy, presented_identity

    proxy = TrustedProxy(frozenset({"front"}))
    assert presented_identity(Headers(headers), frozenset({"somebody"}), proxy, lambda _: None) is None
    assert PresentedIdentity("secret").digest != PresentedIdentity("other").digest
    assert "secret" not in repr(PresentedIdentity("secret"))
