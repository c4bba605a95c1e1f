import pytest

from dra_driver.node.slices.watched_slices import StoredSlices
from tests.node.slices.support.slices import DRIVER, NODE, POOL


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


def named(name: str, version: int, *devices: str) -> dict:
    return {**wire(name, version), "spec": {**wire(name, version)["spec"], "devices": [{"name": d} for d in devices]}}


def shown(stored) -> list[str]:
    return [device["name"] for one in stored.all() for device in one["spec"]["devices"]]


def test_while_a_slice_holds_what_the_server_returned_it_counts_as_what_we_sent(stored):
    stored.wrote(named("a", 12, "kept"), over="5", instead=named("a", 12, "kept", "lost")["spec"])
    assert not stored.replace([named("a", 12, "kept")], "12", is_latest=True)
    assert shown(stored) == ["kept", "lost"]
    assert stored.changed(named("a", 13, "kept"))  # somebody changed a label, say
    assert shown(stored) == ["kept", "lost"]
    assert stored.changed(named("a", 14, "theirs"))
    assert shown(stored) == ["theirs"]
    assert [s["spec"]["devices"] for s in stored.as_stored()] == [[{"name": "theirs"}]]


def test_versions_beyond_what_a_machine_word_holds_are_compared_as_numbers(stored):
    stored.wrote(wire("a", 10**30, mark="ours"))
    assert not stored.changed(wire("a", 9 * 10**29, mark="older"))
    assert stored.changed(wire("a", 10**30 + 1, mark="newer"))


@pytest.mark.parametrize("versions", [(12, 11), ("z", "b"), ("007", "006")])
def test_where_versions_cannot_be_compared_an_event_after_our_write_asks_for_a_list(versions):
    ours, other = versions
    stored = StoredSlices(driver=DRIVER, node=NODE, is_ordered=lambda: not isinstance(ours, int))
    stored.replace([wire("a", 5)], "10")
    stored.wrote(wire("a", ours, mark="ours"), over="5")
    assert not stored.is_uncertain
    assert stored.changed(wire("a", other, mark="perhaps older"))
    assert marks(stored) == ["ours"]
    assert stored.is_uncertain
    stored.replace([wire("a", ours, mark="ours")], "12", is_latest=True)
    assert not stored.is_uncertain


def test_where_versions_cannot_be_compared_the_order_of_the_watch_counts():
    stored = StoredSlices(driver=DRIVER, node=NODE, is_ordered=lambda: False)
    stored.replace([wire("a", 5)], "10")
    stored.wrote(wire("a", 12, mark="ours"), over="5")
    assert not stored.changed(wire("a", 12, mark="ours"))
    assert stored.changed(wire("a", 9, mark="theirs"))
    assert marks(stored) == ["theirs"]
    stored.changed(wire("a", 14, mark="ours"))  # the event of our write comes before its answer
    stored.wrote(wire("a", 14, mark="ours"), over="9")
    assert not stored.is_uncertain


def test_where_versions_cannot_be_compared_late_events_of_our_own_writes_are_no_change():
    stored = StoredSlices(driver=DRIVER, node=NODE, is_ordered=lambda: False)
    stored.replace([], "10")
    stored.wrote(wire("a", 11, mark="first"))
    stored.wrote(wire("a", 12, mark="second"), over="11")
    stored.wrote(wire("a", 13, mark="third"), over="12")
    for version in (11, 12, 13):
        assert not stored.changed(wire("a", version, mark="ours"))
    assert marks(stored) == ["third"]
    assert not stored.is_uncertain
    assert stored.changed(wire("a", 12, mark="restored"))  # the watch's order counts again
