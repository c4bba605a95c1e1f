"""The health of AMD's GPUs: error counters, bad pages, temperatures and the bus, read by a thread of its own.

In: roots. Out: reports of what was read since the last. A read that never returns holds this thread alone; the report
then tells for how long. A file that a GPU lacks says nothing: it never means that all is well.

Source: Linux Documentation/gpu/amdgpu/ras (`ue:` and `ce:` lines of *_err_count; in gpu_vram_bad_pages R is retired,
P pending, F failed), Documentation/hwmon/sysfs-interface (temp*_input and temp*_crit in thousandths of a degree).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dra_driver.hardware.amd.facts import AMD, DRIVERS
from dra_driver.hardware.bus import bus_state
from dra_driver.hardware.drm import DrmFunction, read_functions
from dra_driver.hardware.evidence import BusState, HealthReport, Vitals
from dra_driver.hardware.pci import entries_of, read_text
from dra_driver.hardware.port import Roots

POLL_SECONDS = 10.0
SILENT_SECONDS = 5.0  # a round takes milliseconds; one that takes longer hangs in a driver
_UNCORRECTABLE = re.compile(r"^ue:\s*(\d{1,18})$", re.MULTILINE)
_BAD_PAGE = re.compile(r"^0x[0-9a-fA-F]+\s*:\s*0x[0-9a-fA-F]+\s*:\s*([RPF])$", re.MULTILINE)


class AmdHealth:
    """What is observed from its making until `close`."""

    def __init__(self, roots: Roots, notify: Callable[[], None], *, poll_s: float = POLL_SECONDS) -> None:
        self._roots, self._notify, self._poll_s = roots, notify, poll_s
        self._changed = threading.Condition()
        self._vitals: dict[str, Vitals] = {}
        self._rounds, self._wanted = 0, 0
        self._began: float | None = None  # when the round under way began
        self._is_closed = False
        threading.Thread(target=self._run, name="amd-health", daemon=True).start()

    def report(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was read since the last call; where it `is_urgent`, wait for a round that begins now."""
        with self._changed:
            if is_urgent:
                wanted = self._wanted = self._rounds + (2 if self._began is not None else 1)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._rounds >= wanted or self._is_closed, patience_s)
            vitals, began = tuple(self._vitals.values()), self._began
            self._vitals.clear()
        silent = time.monotonic() - began if began is not None else 0.0
        is_silent = silent >= SILENT_SECONDS
        return HealthReport(
            readings=vitals, silent_s=silent if is_silent else 0.0, silent_on="a read of sysfs" if is_silent else ""
        )

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the bus shows of GPUs."""
        return {gpu: bus_state(self._roots, gpu, DRIVERS) for gpu in gpus}

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._began = time.monotonic()
            found = {one.address: read_vitals(one, self._roots) for one in read_functions(self._roots, AMD, DRIVERS)}
            with self._changed:
                self._vitals.update(found)
                self._began, self._rounds = None, self._rounds + 1
                self._changed.notify_all()
            self._notify()
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._wanted > self._rounds, self._poll_s)


def read_vitals(function: DrmFunction, roots: Roots) -> Vitals:
    """Return what the files of one GPU say now."""
    address, folder = function.address, function.folder
    if bus_state(roots, address, DRIVERS) is BusState.DEAD:
        return Vitals(address, time.time(), is_lost=True)
    pages = _bad_pages(folder)
    margin = min(_margins(folder), default=None)
    return Vitals(
        address,
        time.time(),
        ecc_uncorrectable=_uncorrectable(folder / "ras"),
        remap_pending=None if pages is None else "P" in pages,
        remap_failed=None if pages is None else "F" in pages,
        thermal_margin=margin,
        slowdown_margin=None if margin is None else 0,
    )


def _uncorrectable(folder: Path) -> int | None:
    """Return the uncorrectable errors of all blocks since the driver was loaded, None where no file counts them."""
    texts = (read_text(folder / name) for name in entries_of(folder) if name.endswith("_err_count"))
    counts = [int(found[1]) for text in texts if (found := _UNCORRECTABLE.search(text or ""))]
    return sum(counts) if counts else None


def _bad_pages(folder: Path) -> frozenset[str] | None:
    """Return the states that bad pages of memory are in, None where the GPU does not list them."""
    text = read_text(folder / "ras/gpu_vram_bad_pages")
    return None if text is None else frozenset(_BAD_PAGE.findall(text))


def _margins(folder: Path) -> Iterator[int]:
    """Yield for each sensor with a critical temperature how many degrees are left to it."""
    for sensor in entries_of(folder / "hwmon"):
        place = folder / "hwmon" / sensor
        for number in range(1, 4):  # edge, junction, memory
            now, most = (_number(place / f"temp{number}_{name}") for name in ("input", "crit"))
            if now is not None and most is not None and 0 < most < 200_000:
                yield (most - now) // 1000


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None
