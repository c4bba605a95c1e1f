import pytest

from dra_driver.controller.stored import StoredSlices
from tests.controller.support.slices import DRIVER, NODE, POOL


def wire(name: str, version: int, *, uid: str = "", mark: str = "", node: str = NODE, driver: str = DRIVER) -> dict:
    return {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "managedFields": [{"manager": "x"}],
        },
        "spec": {"driver": driver, "nodeName": node, "pool": {"name": POOL}, "mark": mark},
    }


@pytest.fixture
def stored():
    slices = StoredSlices(driver=DRIVER, node=NODE)
    slices.replace([wire("a", 5)], "10")
    return slices


def names(stored):
    return [s["metadata"]["name"] for s in stored.all()]


def marks(stored):
    return [s["spec"]["mark"] for s in stored.all()]


def test_nothing_is_known_before_the_first_list():
    assert not StoredSlices(driver=DRIVER, node=NODE).is_complete


def test_slices_of_others_are_never_stored(stored):
    assert not stored.changed(wire("b", 11, node="node-2"))
    assert not stored.changed(wire("c", 12, driver="other"))
    stored.replace([wire("a", 5), wire("d", 6, node="node-2")], "13")
    assert names(stored) == ["a"]


def test_managed_fields_are_not_kept(stored):
    assert "managedFields" not in stored.all()[0]["metadata"]


def test_the_event_of_our_own_write_is_no_change(stored):
    stored.wrote(wire("b", 12))
    assert not stored.changed(wire("b", 12))


def test_an_event_from_before_our_write_is_no_change(stored):
    stored.wrote(wire("a", 12, mark="ours"))
    assert not stored.changed(wire("a", 11, mark="older"))
    assert marks(stored) == ["ours"]


def test_an_answer_that_comes_after_a_newer_event_is_not_taken_over(stored):
    assert stored.changed(wire("a", 13, mark="theirs"))
    stored.wrote(wire("a", 12, mark="ours"))
    assert marks(stored) == ["theirs"]


def test_a_slice_that_was_deleted_before_our_answer_came_does_not_come_back(stored):
    stored.deleted(wire("b", 13))
    stored.wrote(wire("b", 12))
    assert names(stored) == ["a"]


def test_a_late_event_of_a_deleted_slice_does_not_bring_it_back(stored):
    assert stored.deleted(wire("a", 11))
    assert not stored.changed(wire("a", 9))
    assert not stored.deleted(wire("a", 11))
    assert names(stored) == []


def test_a_name_used_again_is_another_slice(stored):
    assert stored.changed(wire("a", 12, uid="second"))
    assert not stored.deleted(wire("a", 11))
    assert names(stored) == ["a"]


def test_a_list_made_before_our_write_does_not_undo_it(stored):
    stored.wrote(wire("b", 12))
    assert not stored.replace([wire("a", 5)], "11")
    assert names(stored) == ["a", "b"]


def test_a_list_made_after_our_write_removes_what_it_does_not_hold(stored):
    stored.wrote(wire("b", 12))
    assert stored.replace([wire("a", 5)], "20")
    assert names(stored) == ["a"]


def test_a_list_of_the_latest_state_replaces_everything(stored):
    stored.wrote(wire("b", 12))
    assert stored.replace([wire("a", 4, mark="restored")], "11", is_latest=True)
    assert marks(stored) == ["restored"]


def test_a_list_older_than_the_last_comes_from_a_restored_server_and_is_accepted(stored):
    stored.wrote(wire("a", 12, mark="lost"))
    assert stored.replace([wire("a", 3, mark="restored")], "4")
    assert marks(stored) == ["restored"]


def test_what_is_remembered_instead_of_the_stored_spec_survives_a_list_without_changes(stored):
    stored.wrote(wire("a", 12, mark="stored"), instead={**wire("a", 12)["spec"], "mark": "sent"})
    assert not stored.replace([wire("a", 12, mark="stored")], "12", is_latest=True)
    assert marks(stored) == ["sent"]
    assert stored.changed(wire("a", 13, mark="theirs"))
    assert marks(stored) == ["theirs"]
