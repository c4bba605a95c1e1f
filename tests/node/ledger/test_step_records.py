"""Step records: the bytes of steps in a claim's row, and the steps that are read of them."""

from __future__ import annotations

import json

import pytest

from dra_driver.base.wire import json_text
from dra_driver.node.ledger.record import record_of_step, step_of_record, steps_of_records, text_of_steps
from dra_driver.node.ledger.recorded_steps import (
    GpuReference,
    RecordedFile,
    RecordedMode,
    RecordedPartition,
    RecordedStep,
    UnknownStep,
)

GPU = GpuReference("GPU-1", "0000:01:00.0", 3)
GPU_TEXT = '{"minor":3,"pci":"0000:01:00.0","uuid":"GPU-1"}'


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (RecordedFile('a"\\ä.json'), '{"file":"a\\"\\\\\\u00e4.json","kind":"cdi-file"}'),
        (RecordedFile("a.json", rest={"new": 1}), '{"file":"a.json","kind":"cdi-file","new":1}'),
        (
            RecordedMode(GPU),
            f'{{"gpu":{GPU_TEXT},"key":"0000:01:00.0","kind":"mig-mode","restore":false}}',
        ),
        (
            RecordedPartition("p", GPU, start=4, boot_id="b", owner="us", uuid="", switches_mode=True),
            '{"bootId":"b","gpu":' + GPU_TEXT + ',"key":"p","kind":"mig-partition","owner":"us","start":4,'
            '"switchesMode":true,"uuid":""}',
        ),
    ],
)
def test_a_step_has_these_bytes_and_is_read_from_them(step: RecordedStep, text: str) -> None:
    assert json_text(record_of_step(step)) == text
    assert step_of_record(json.loads(text)) == step


def test_steps_are_written_back_as_they_were_read() -> None:
    records = [{"kind": "cdi-file", "file": "f"}, {"kind": "mig-partition", "key": "p", "gpu": None, "later": [1]}]
    records += [{"kind": "teleport", "to": "mars"}]
    records += [
        {"kind": "mig-mode", "key": "g", "gpu": {"uuid": "u", "pci": "g", "minor": 0, "later": 1}, "restore": True}
    ]
    steps = steps_of_records(records)
    assert isinstance(steps[3], RecordedMode)
    assert isinstance(steps[2], UnknownStep)
    assert text_of_steps(steps) == json_text(records)


def test_the_record_of_a_made_partition_has_its_uuid_and_what_a_newer_agent_added() -> None:
    intent = RecordedPartition("p", GPU, start=4, boot_id="b", owner="us", uuid="")
    assert record_of_step(intent)["uuid"] == ""
    assert record_of_step(intent.as_made("MIG-1")) == {**record_of_step(intent), "uuid": "MIG-1"}
    read = step_of_record({**record_of_step(intent), "later": 1})
    assert isinstance(read, RecordedPartition)
    assert record_of_step(read.as_made("MIG-1"))["later"] == 1
