import json

import pytest

from dra_driver.base.errors import InputError, LedgerError
from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.fault_record import HealthRecord
from dra_driver.node.health.faults import KnownGpus, read_gpus
from dra_driver.node.health.stored_health import RECORD, HealthStore, record_wire
from dra_driver.tools.node.report import fault_rows
from tests.node.health.support.parts import BOOT, KNOWN, ONE, TWO, gpu, partition, report, xid


def test_written_documents_are_read_back(tmp_path):
    assert HealthStore(tmp_path).read() == {}
    HealthStore(tmp_path).write({"record": {"a": [1.5, None]}})
    HealthStore(tmp_path).write({"gpus": []})
    assert HealthStore(tmp_path).read() == {"record": {"a": [1.5, None]}, "gpus": []}


def test_a_damaged_store_is_an_error_and_can_be_set_aside(tmp_path):
    (tmp_path / "health.db").write_bytes(b"not a database" * 999)
    with pytest.raises(LedgerError, match="damaged"):
        HealthStore(tmp_path).read()
    HealthStore(tmp_path).set_aside()
    HealthStore(tmp_path).write({"record": 1})
    assert HealthStore(tmp_path).read() == {"record": 1}


def test_a_store_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(LedgerError, match=r"nowhere"):
        HealthStore(tmp_path / "nowhere").write({"record": 1})


def test_a_cordon_keeps_its_time_when_it_is_repeated(tmp_path):
    file = CordonFile(tmp_path)
    file.add(Cordon("gpu-one", "noise", 100.0))
    file.add(Cordon("gpu-one", "smoke", 200.0, until=300.0))
    assert file.read() == (Cordon("gpu-one", "smoke", 100.0, 300.0),)
    assert file.remove("gpu-one")
    assert not file.remove("gpu-one")
    assert file.read() == ()


def test_rows_of_faults_and_cordons_begin_with_the_most_important(tmp_path):
    record = HealthRecord(BOOT)
    record.add_report(report(xid(48), bus=((TWO, BusState.DEAD),)), KNOWN, 100.0)
    HealthStore(tmp_path).write({RECORD: record_wire(record)})
    CordonFile(tmp_path).add(Cordon("gpu-one", "noise", 100.0))
    assert [row["fault"] for row in fault_rows(tmp_path, 101.0)] == ["gpu-lost", "needs-reset", "cordoned", "xid"]


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"version": "cordons/v1"}', '{"version": "cordons/v1", "cordons": [{"device": "../x"}]}', "[" * 99999],
)
def test_a_malformed_file_of_cordons_is_refused(tmp_path, text):
    (tmp_path / "cordons.json").write_text(text)
    with pytest.raises(InputError):
        CordonFile(tmp_path).read()


def known(states):
    return KnownGpus(lambda gpus: {gpu: states[gpu] for gpu in gpus})


BOTH = Facts("nvidia", gpus=(gpu(ONE), gpu(TWO)))


@pytest.mark.parametrize("state", [BusState.GONE, BusState.HERE, BusState.DEAD])
def test_a_gpu_that_vanishes_stays_with_its_last_facts(state):
    gpus = known({TWO: state})
    assert gpus.completed(BOTH) == BOTH
    (_, lost) = gpus.completed(Facts("nvidia", gpus=(gpu(ONE),))).gpus
    assert lost.pci_address == TWO
    assert lost.is_lost
    assert gpus.missing == {TWO: False}


def test_a_gpu_about_which_a_call_hangs_is_missing_for_that_reason():
    gpus = known({TWO: BusState.HERE})
    gpus.completed(BOTH)
    gpus.completed(Facts("nvidia", gpus=(gpu(ONE),), problems=(Problem("hardware.gpu-not-answering", TWO, ""),)))
    assert gpus.missing == {TWO: True}


def test_a_gpu_that_another_driver_took_over_is_not_missing():
    gpus = known({TWO: BusState.ELSEWHERE})
    gpus.completed(BOTH)
    assert len(gpus.completed(Facts("nvidia", gpus=(gpu(ONE),))).gpus) == 1
    assert not gpus.missing


def test_an_unloaded_driver_makes_no_gpu_missing():
    gpus = known({})
    gpus.completed(BOTH)
    assert gpus.completed(Facts("nvidia", waiting_for="the driver")).gpus == ()
    assert not gpus.missing


def test_known_gpus_are_read_back_and_what_is_unreadable_is_left_out():
    gpus = known({})
    partitioned = gpu(TWO, partitions=(partition(1),), mig_enabled=True)
    gpus.completed(Facts("nvidia", gpus=(gpu(ONE), partitioned)))
    wire = json.loads(json.dumps(gpus.to_wire()))
    assert read_gpus(wire) == (gpu(ONE), partitioned)
    assert read_gpus([{"uuid": 1}, wire[0]]) == (gpu(ONE),)
