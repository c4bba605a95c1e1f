"""Events of the last five minutes, by kind."""

from dataclasses import replace

import pytest

from dra_driver.hardware.metered import RECENT_CLOCK_EVENTS, RECENT_XIDS, Measure, MeterReport, Reading
from dra_driver.hardware.nvidia.dcgm_names import NAMES
from dra_driver.node.metering.holders import RecentEvents
from dra_driver.node.metering.series import lines_of
from tests.support.metering.snapshots import Made, samples

GPU = ("0000:01:00.0", None)
WINDOW = ("window_size_in_ms", "300000")


@pytest.fixture
def recent():
    return RecentEvents()


def counts(recent, quantity):
    return {
        dict(pairs).get("xid") or dict(pairs).get("clock_event", ""): n for pairs, n in recent.counts(quantity, GPU)
    }


def test_an_xid_counts_for_five_minutes(recent):
    recent.update(MeterReport(), 1000.0)
    assert counts(recent, RECENT_XIDS) == {"": 0}
    recent.update(MeterReport(xids={GPU: {79: 1}}), 1010.0)
    recent.update(MeterReport(xids={GPU: {79: 3, 13: 1}}), 1200.0)
    assert counts(recent, RECENT_XIDS) == {"79": 3, "13": 1}
    recent.update(MeterReport(xids={GPU: {79: 3, 13: 1}}), 1311.0)
    assert counts(recent, RECENT_XIDS) == {"79": 2, "13": 1}
    recent.update(MeterReport(xids={GPU: {79: 3, 13: 1}}), 1501.0)
    assert counts(recent, RECENT_XIDS) == {"": 0}


def test_readings_count_by_the_reasons_for_which_the_clocks_are_held_down(recent):
    for at, bits in ((1000.0, 0x1), (1010.0, 0x44), (1020.0, 0x4), (1020.0, 0x4)):
        recent.update(MeterReport((Reading(GPU[0], at, {Measure.CLOCK_REASONS: float(bits)}),)), at)
    assert counts(recent, RECENT_CLOCK_EVENTS) == {"gpu_idle": 1, "power_cap": 2, "hw_thermal": 1}
    recent.update(MeterReport((Reading(GPU[0], 1315.0, {Measure.CLOCK_REASONS: 0.0}),)), 1315.0)
    assert counts(recent, RECENT_CLOCK_EVENTS) == {"power_cap": 1}


def test_events_are_forgotten_even_after_the_clock_is_set_back(recent):
    recent.update(MeterReport(xids={GPU: {79: 1}}), 90_000.0)
    for at in (1000.0, 1100.0, 1500.0, 1900.0):
        recent.update(MeterReport(xids={GPU: {79: 1}}), at)
    assert counts(recent, RECENT_XIDS) == {"": 0}


def test_the_names_of_the_common_exporter_have_its_labels():
    made = Made()
    address = made.gpus[0].pci_address
    made.read(0, {Measure.TEMPERATURE_C: 40.0})
    snapshot = made.snapshot()
    report = replace(snapshot.report, xids={(address, None): {48: 2}})
    snapshot.recent.update(MeterReport(), 1.0)
    snapshot.recent.update(report, 2.0)
    found = samples(lines_of([one for one in NAMES if one.head.name == "DCGM_EXP_XID_ERRORS_COUNT"], snapshot))
    assert [(one.labels["gpu"], one.labels["xid"], one.value) for one in found] == [("0", "48", 2)]
    assert found[0].labels[WINDOW[0]] == WINDOW[1]
