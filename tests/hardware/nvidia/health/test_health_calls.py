"""A call that a library lacks or refuses costs a reading only what that call reports; events still arrive."""

import time
from dataclasses import fields

import pytest

from dra_driver.hardware.evidence import Vitals
from tests.hardware.nvidia.support.watching import Watching, healed
from tests.support.fake_nvml import Code
from tests.support.waiting import until

pytestmark = pytest.mark.gcc

FUNCTION_NOT_FOUND, TIMEOUT, RESET_REQUIRED = 13, 10, 16
HEALTH = {
    "recovery_action": 1, "remap_pending": 1, "remap_failed": 0, "ecc_uncorrectable": 3, "sram_threshold": 1,
    "thermal_margin": -7, "slowdown_margin": -2, "clock_reasons": 0x40, "fabric_health": 2, "pcie_replays": 5,
    "pcie_link": "5 16",
}  # fmt: skip
# What each call reports alone; a GPU that can't be identified is not watched at all.
REPORTS = {
    "nvmlDeviceGetFieldValues": {"recovery_action", "remap_pending", "remap_failed", "thermal_margin",
                                 "slowdown_margin", "pcie_replays", "pcie_lanes", "pcie_generation", "links"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_uncorrectable"},
    "nvmlDeviceGetSramEccErrorStatus": {"sram_threshold_exceeded"},
    "nvmlDeviceGetMarginTemperature": {"thermal_margin", "slowdown_margin"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"clock_reasons"},
    "nvmlDeviceGetGpuFabricInfoV": {"fabric_summary"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_lanes"},
    "nvmlDeviceGetMemoryInfo": {"is_lost"},
    "nvmlDeviceGetNvLinkState": {"links"},
    "nvmlDeviceRegisterEvents": set(),
    "nvmlDeviceGetSupportedEventTypes": set(),
}  # fmt: skip


@pytest.fixture
def watching(tmp_path, monkeypatch):
    with healed(Watching(tmp_path, monkeypatch)) as it:
        yield it


def reread(watching):
    """Let the vendor open the library again, and return what it reads of the first GPU."""
    watching.hardware.close()
    watching.state.write()
    until(watching.has_opened)
    watching.vitals.clear()
    watching.until(lambda: len(watching.vitals) == 2)
    watching.look(is_urgent=True)
    return watching.vitals[watching.state.gpus[0].pci]


def values(found):
    names = {one.name for one in fields(Vitals)} - {"at", "gpu", "uuid", "reset"}  # the library reports no reset
    return {name: getattr(found, name) for name in names}


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.NO_PERMISSION, FUNCTION_NOT_FOUND, Code.UNKNOWN, TIMEOUT])
def test_each_call_that_fails_costs_only_what_it_reports(watching, code):
    one, _ = watching.state.gpus
    one.report_health(**HEALTH)
    known = values(reread(watching))
    assert None not in known.values()
    wrong = {}
    for function, reports in REPORTS.items():
        one.faults.clear()
        one.fail(function, code)
        found = values(reread(watching))
        differing = {name for name, value in found.items() if value != known[name]}
        if not differing <= reports:
            wrong[function] = differing
    assert wrong == {}


def test_a_gpu_without_memory_of_its_own_is_read_all_the_same(watching):
    one, _ = watching.state.gpus
    one.report_health(recovery_action=2)
    one.fail("nvmlDeviceGetMemoryInfo", Code.NOT_SUPPORTED)
    assert reread(watching).recovery_action == 2


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues"])
def test_a_reset_that_a_call_reports_as_required_is_the_recovery_action(watching, function):
    one, two = watching.state.gpus
    one.report_health(recovery_action=None)
    one.fail(function, RESET_REQUIRED)
    watching.state.write()
    watching.look(is_urgent=True)
    assert watching.vitals[one.pci].recovery_action == 1
    assert not watching.vitals[one.pci].is_lost
    assert watching.vitals[two.pci].recovery_action == 0


def test_values_that_have_no_field_are_read_by_the_older_calls(watching):
    one, _ = watching.state.gpus
    one.report_health(remap_pending=None, remap_failed=None, ecc_uncorrectable=None, slowdown_margin=None)
    one.facts |= {"remapped_rows": "0 1 1 0", "ecc_memory": "7", "temperature": "96", "slowdown_temperature": "92"}
    one.facts["throttle_reasons"] = "0x40"
    found = reread(watching)
    assert (found.remap_pending, found.remap_failed, found.ecc_uncorrectable) == (True, False, 7)
    assert (found.thermal_margin, found.slowdown_margin, found.clock_reasons) == (-4, 0, 0x40)


def test_pages_that_are_to_be_retired_count_as_rows_that_are_to_be_remapped(watching):
    one, _ = watching.state.gpus
    one.report_health(remap_pending=None, remap_failed=None)
    one.facts["retired_pages_pending"] = "1"
    assert reread(watching).remap_pending is True


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_a_library_that_does_not_say_which_events_there_are_is_asked_for_xids(watching, code):
    one, _ = watching.state.gpus
    for gpu in watching.state.gpus:
        gpu.fail("nvmlDeviceGetSupportedEventTypes", code)
    reread(watching)
    one.xid(48)
    watching.state.write()
    watching.until(lambda: watching.xids == [(one.pci, 48, None)])


def test_an_event_of_a_gpu_that_was_registered_by_another_handle_is_assigned_to_it(watching, monkeypatch):
    monkeypatch.setattr("dra_driver.hardware.nvidia.observation.address_of", id)
    one, _ = watching.state.gpus
    reread(watching)
    one.xid(48)
    watching.state.write()
    watching.until(lambda: watching.xids == [(one.pci, 48, None)])


def test_a_wait_that_returns_at_once_does_not_make_the_watch_spin(watching, monkeypatch):
    log = watching.state.path.with_name("calls")
    monkeypatch.setenv("FAKE_NVML_LOG", str(log))
    watching.state.faults["nvmlEventSetWait_v2"] = str(TIMEOUT)
    reread(watching)
    before, began = waits(log), time.monotonic()
    watching.until(lambda: waits(log) > before + 1)
    assert waits(log) - before < 20 * (time.monotonic() - began) + 5


def test_a_watch_that_ended_with_an_error_is_silent(watching, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("dra_driver.hardware.nvidia.observation.read_vitals", broken)
    watching.until(lambda: watching.silent > 0)


def waits(log):
    return log.read_text().count("nvmlEventSetWait_v2") if log.exists() else 0
