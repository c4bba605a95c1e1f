"""JSON merge patch and the apply of device status, as pure functions."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.simulator.claim_rules import apply_status, merge_patch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_a_patch_applied_twice_gives_the_same_as_once(target, patch):
    before = copy.deepcopy(target)
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert target == before


@given(JSON)
def test_an_empty_patch_changes_no_object(target):
    if isinstance(target, dict):
        assert merge_patch(target, {}) == target


def entry(device, **more):
    return {"driver": "d", "pool": "p", "device": device, **more}


def test_an_owner_replaces_and_removes_its_own_entries_only():
    stored = {"status": {"devices": [entry("mine"), entry("theirs"), entry("gone")]}}
    applied = {"status": {"devices": [entry("mine", data=1), entry("new")]}}
    owned = frozenset({("d", "p", "mine", ""), ("d", "p", "gone", "")})
    result, now_owned = apply_status(stored, applied, owned)
    assert result["status"]["devices"] == [entry("mine", data=1), entry("theirs"), entry("new")]
    assert now_owned == {("d", "p", "mine", ""), ("d", "p", "new", "")}


def test_entries_with_different_share_ids_are_different_entries():
    stored = {"status": {"devices": [entry("a", shareID="1")]}}
    result, _ = apply_status(stored, {"status": {"devices": [entry("a", shareID="2")]}}, frozenset())
    assert len(result["status"]["devices"]) == 2


def test_the_list_is_removed_with_its_last_entry():
    stored = {"status": {"devices": [entry("a")], "reservedFor": [1]}}
    result, _ = apply_status(stored, {"status": {}}, frozenset({("d", "p", "a", "")}))
    assert result["status"] == {"reservedFor": [1]}
