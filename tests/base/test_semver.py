"""Semantic versions: what parses, and how they are ordered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.versions import Semver, SemverError, normalize


@pytest.mark.parametrize("text", ["0.0.0", "1.2.3", "1.0.0-alpha.1", "0.9.0-rc.1+build5", "1.0.0--", "1.0.0+001"])
def test_a_strict_version_prints_as_it_was_written(text):
    assert str(Semver.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("1.2", "No Major.Minor.Patch"),
        ("v1.2.3", "major number"),
        ("01.2.3", "leading zeroes"),
        ("1.2.3-", "Prerelease is empty"),
        ("1.2.3-01", "leading zeroes"),
        ("1.2.3+", "Build meta data is empty"),
        ("1.2.x", "patch number"),
        ("1.2.99999999999999999999", "out of range"),
        ("1.2.3-a_b", "prerelease"),
    ],
)
def test_what_is_not_strict_is_refused_with_the_servers_reason(text, words):
    with pytest.raises(SemverError, match=words):
        Semver.parse(text)


def test_the_order_is_that_of_the_specification():
    texts = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
    ]
    versions = [Semver.parse(text) for text in texts]
    assert versions == sorted(versions, key=lambda version: version)
    assert sorted([versions[5], versions[0], versions[3]]) == [versions[0], versions[3], versions[5]]


def test_build_metadata_plays_no_part_in_equality():
    assert Semver.parse("1.0.0+a") == Semver.parse("1.0.0+b")
    assert hash(Semver.parse("1.0.0+a")) == hash(Semver.parse("1.0.0+b"))


@pytest.mark.parametrize(
    ("text", "strict"), [("v1", "1.0.0"), ("1.02", "1.2.0"), ("v01.002.003-rc", "1.2.3-rc"), ("0", "0.0.0")]
)
def test_a_lenient_version_is_repaired(text, strict):
    assert normalize(text) == strict


def test_a_short_version_with_a_prerelease_can_not_be_repaired():
    with pytest.raises(SemverError):
        normalize("1.2-rc")


_NUMBERS = st.integers(0, 2**40)
_VERSIONS = st.builds(
    lambda a, b, c, pre: f"{a}.{b}.{c}" + (f"-{pre}" if pre else ""),
    _NUMBERS,
    _NUMBERS,
    _NUMBERS,
    st.sampled_from(["", "rc.1", "alpha", "1", "a.b.3"]),
)


@given(_VERSIONS, _VERSIONS)
def test_comparing_the_other_way_round_gives_the_opposite(left, right):
    a, b = Semver.parse(left), Semver.parse(right)
    assert a.compare(b) == -b.compare(a)
    assert (a == b) == (a.compare(b) == 0)
