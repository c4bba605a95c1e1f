"""The scanner with a stand-in for the hardware port: when it scans, what it reports, which failures it survives."""

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.slices.scanner import InventoryInputs, NodeInventory, OwnChanges, Scanner
from tests.support.waiting import until

GPU = NvidiaGpu(uuid="GPU-1", pci_address="0000:01:00.0", minor=0, memory_bytes=1 << 30)
OTHER = NvidiaGpu(uuid="GPU-2", pci_address="0000:02:00.0", minor=1, memory_bytes=1 << 30)


class StandInHardware:
    """Hardware whose facts and faults a test sets."""

    vendor = "stand"

    def __init__(self, *gpus):
        self.facts = Facts(vendor="stand", gpus=gpus)
        self.is_same_fingerprint = False
        self.error = None
        self.discoveries = 0
        self.closed = 0

    def fingerprint(self):
        if self.error:
            raise self.error
        return "same" if self.is_same_fingerprint else self.facts

    def discover(self):
        self.discoveries += 1
        return self.facts

    def close(self):
        self.closed += 1


class UnchangedFacts:
    """Offers facts as they are."""

    is_settled = True

    def fingerprint(self):
        return None

    def assess(self, facts):
        return InventoryInputs(facts)


@contextmanager
def scanning(hardware, **options):
    seen = []
    changed = threading.Event()
    inventory = NodeInventory()
    scanner = Scanner(
        hardware,
        inventory,
        UnchangedFacts(),
        own_changes=OwnChanges(),
        listener=SimpleNamespace(inventory_changed=lambda: seen.append(inventory.current), driver_changed=changed.set),
        **({"probe_s": 0.01, "full_s": 60.0} | options),
    )
    scanner.newest = inventory
    scanner.start()
    try:
        yield scanner, seen, changed
    finally:
        scanner.stop()


def test_the_first_inventory_is_reported_once():
    hardware = StandInHardware(GPU)
    with scanning(hardware) as (scanner, seen, _):
        until(lambda: seen)
        until(lambda: scanner.scans == 1)
        assert [len(i.devices) for i in seen] == [1]
        assert hardware.discoveries == 1


def test_a_change_that_the_probe_shows_is_reported():
    hardware = StandInHardware(GPU)
    with scanning(hardware) as (_, seen, _changed):
        until(lambda: seen)
        hardware.facts = Facts(vendor="stand", gpus=(GPU, OTHER))
        until(lambda: len(seen) == 2)
        assert len(seen[-1].devices) == 2


def test_a_change_that_the_probe_does_not_show_is_found_by_the_full_scan():
    hardware = StandInHardware(GPU)
    hardware.is_same_fingerprint = True
    with scanning(hardware, full_s=0.05) as (_, seen, _changed):
        until(lambda: seen)
        hardware.facts = Facts(vendor="stand", gpus=(OTHER,))
        until(lambda: len(seen) == 2)


def test_a_failing_probe_keeps_the_last_inventory_and_goes_on():
    hardware = StandInHardware(GPU)
    with scanning(hardware) as (scanner, seen, _):
        until(lambda: seen)
        hardware.error = HardwareError("library", "no answer")
        hardware.facts = Facts(vendor="stand", gpus=(GPU, OTHER))
        scanner.run_soon()
        time.sleep(0.03)
        assert len(scanner.newest.current.devices) == 1
        hardware.error = None
        until(lambda: len(seen) == 2)


def test_a_changed_driver_ends_the_scan_and_asks_for_a_fresh_start():
    hardware = StandInHardware(GPU)
    hardware.error = HardwareError("driver-changed", "580 is loaded, 570 was")
    with scanning(hardware) as (_, seen, changed):
        assert changed.wait(60)
        assert seen == []


def test_a_pause_closes_the_library_until_the_scanner_is_resumed():
    hardware = StandInHardware(GPU)
    with scanning(hardware) as (scanner, seen, _):
        until(lambda: seen)
        scanner.pause()
        until(lambda: hardware.closed)
        before = hardware.discoveries
        hardware.facts = Facts(vendor="stand", gpus=(GPU, OTHER))
        scanner.resume()
        until(lambda: len(seen) == 2)
        assert hardware.discoveries > before


def test_changed_device_nodes_are_reported_although_no_device_changed():
    hardware = StandInHardware(GPU)
    fingerprints = iter([1, 2])
    last = [1]

    def fingerprint():
        last[0] = next(fingerprints, last[0])
        return last[0]

    hardware.fingerprint = fingerprint
    with scanning(hardware) as (_, seen, _changed):
        until(lambda: len(seen) == 2)
        assert seen[0] == seen[1]


def test_a_scan_that_is_asked_for_while_another_runs_is_made():
    """What the first scan has already read may change before it ends, and no probe has to show that."""
    hardware = StandInHardware(GPU)
    hardware.is_same_fingerprint = True
    entered, go_on = threading.Event(), threading.Event()
    first = hardware.discover

    def slow():
        facts = first()
        entered.set()
        go_on.wait(60)
        return facts

    hardware.discover = slow
    with scanning(hardware, probe_s=60.0) as (scanner, seen, _):
        assert entered.wait(60)
        hardware.facts = Facts(vendor="stand", gpus=(GPU, OTHER))
        scanner.run_soon()
        go_on.set()
        until(lambda: seen and len(seen[-1].devices) == 2)
