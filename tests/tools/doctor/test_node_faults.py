"""What the doctor reads of the agent's health files: real files, as the agent writes them."""

import os

import pytest

from dra_driver.base.errors import DriverError
from dra_driver.node.health.cordons import FILE_NAME as CORDONS
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.fault_record import HealthRecord
from dra_driver.node.health.faults import FaultKey, Subject
from dra_driver.node.health.stored_health import RECORD, HealthStore, record_wire
from dra_driver.node.health.xids import Indication
from dra_driver.tools.doctor.evidence import read_faults


def recorded(folder, record):
    HealthStore(folder).write({RECORD: record})
    for name in ("state.db", "health.db"):
        os.utime(folder / name, (1000, 1000))


def test_faults_and_cordons_in_force_are_read_with_how_long_nothing_was_written(tmp_path):
    record = HealthRecord("boot-1")
    record.observe(Subject("0000:01:00.0"), Indication(FaultKey.ECC_THRESHOLD, is_bad=True), 900.0)
    recorded(tmp_path, record_wire(record))
    CordonFile(tmp_path).add(Cordon("gpu-0000-01-00-0", "noise", 900.0))
    CordonFile(tmp_path).add(Cordon("gpu-0000-02-00-0", "over", 900.0, until=950.0))
    found = read_faults(tmp_path, 1200.0)
    assert [(one.key, one.since) for one in found.faults] == [(FaultKey.ECC_THRESHOLD, 900.0)]
    assert [one.device for one in found.cordons] == ["gpu-0000-01-00-0"]
    assert found.silent_s == 200.0


def test_a_node_without_an_agent_has_nothing_recorded(tmp_path):
    assert read_faults(tmp_path / "nowhere", 0.0) is None


def test_a_cordon_is_read_where_no_agent_runs(tmp_path):
    CordonFile(tmp_path).add(Cordon("gpu-0000-01-00-0", "noise", 900.0))
    assert len(read_faults(tmp_path, 1200.0).cordons) == 1


@pytest.mark.parametrize("damaged", ["record", "database", "cordons"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, damaged):
    recorded(tmp_path, {"boot": 1} if damaged == "record" else record_wire(HealthRecord("boot-1")))
    if damaged == "database":
        (tmp_path / "state.db").write_bytes(b"x" * 4096)
    if damaged == "cordons":
        (tmp_path / CORDONS).write_text("[]")
    with pytest.raises(DriverError, match=CORDONS if damaged == "cordons" else "state.db"):
        read_faults(tmp_path, 0.0)
