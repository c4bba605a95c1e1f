"""The state that is unavailable is left as it is and read later; only a damaged one is set aside."""

import pytest

from dra_driver.base.errors import LedgerError
from dra_driver.node.health.stored_health import HealthStore
from dra_driver.node.ledger.state import is_damaged
from tests.support.kept_files import damage_all, leave_hot_journal, locked, state_of, without_descriptors

DOCUMENTS = {"record": {"of": "today"}, "gpus": ["x" * 200] * 100}


@pytest.fixture
def path(tmp_path):
    HealthStore(tmp_path).write(DOCUMENTS)
    return tmp_path / "state.db"


def refused(folder):
    with pytest.raises(LedgerError) as refusal:
        HealthStore(folder).read()
    return refusal.value


def test_a_file_that_another_process_has_locked_is_unavailable_and_stays_as_it_is(path):
    before = state_of(path.parent)
    with locked(path):
        error = refused(path.parent)
        assert (error.code, is_damaged(error)) == ("ledger.health", False)
        with pytest.raises(LedgerError) as refusal:
            HealthStore(path.parent).write({"record": None})
        assert refusal.value.code == "ledger.health"
    assert state_of(path.parent) == before
    assert HealthStore(path.parent).read() == DOCUMENTS


@pytest.mark.parametrize("name", ["health.db", "state.db"])
def test_what_a_killed_process_had_not_committed_is_undone(path, name):
    leave_hot_journal(path.with_name(name), "documents")
    assert HealthStore(path.parent).read() == DOCUMENTS


def test_a_process_without_descriptors_changes_nothing(path):
    store, before = HealthStore(path.parent), state_of(path.parent)
    with without_descriptors():
        with pytest.raises(LedgerError) as refusal:
            store.read()
        with pytest.raises(LedgerError):
            store.write({"record": None})
    assert refusal.value.code == "ledger.health"
    assert state_of(path.parent) == before


def test_a_folder_in_the_place_of_a_file_is_unavailable(tmp_path):
    for name in ("health.db", "state.db"):
        (tmp_path / name).mkdir()
        assert refused(tmp_path).code == "ledger.health"
        assert (tmp_path / name).is_dir()
        (tmp_path / name).rmdir()


def test_a_truncated_file_is_damaged_whatever_its_length(path):
    whole = path.read_bytes()
    for length in (0, 1, 99, 100, 512, 4095, 4096, 4097, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert is_damaged(refused(path.parent)), length
        assert path.read_bytes() == whole[:length], "reading has changed the file"


def test_text_that_is_no_json_is_damage(path):
    path = path.with_name("health.db")
    path.write_bytes(path.read_bytes().replace(b'{"of":"today"}', b'{"of":"toda\xff}'))
    assert is_damaged(refused(path.parent))


def test_a_damaged_file_is_set_aside_with_its_journal_and_known_to_have_been_there(path):
    leave_hot_journal(path, "documents")
    damage_all(path.parent, "health.db")
    store = HealthStore(path.parent)
    store.set_aside()
    names = {one.name for one in path.parent.iterdir()}
    assert "state.db.damaged" in names
    assert not {"state.db", "state.db-journal"} & names, "its journal would be played back into the next file"
    assert store.may_have_lost("record", store.read())
    store.write({"record": 1})
    assert store.read() == {"record": 1}
    assert not store.may_have_lost("record", store.read())
    assert store.may_have_lost("gpus", store.read())


def test_a_file_that_is_found_to_be_damaged_while_it_is_written_is_set_aside(path):
    damage_all(path.parent, "health.db")
    with pytest.raises(LedgerError) as refusal:
        HealthStore(path.parent).write({"record": 1})
    assert refusal.value.code == "ledger.health-damaged"
    HealthStore(path.parent).write({"record": 1})
    assert HealthStore(path.parent).read() == {"record": 1}
