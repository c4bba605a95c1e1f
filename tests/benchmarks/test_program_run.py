"""What the benchmarks measure of a program that they run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.program_run import run_program

MIB = 1 << 20


def test_the_peak_memory_is_the_programs_own_however_much_the_benchmark_holds() -> None:
    held = bytearray(300 * MIB)
    assert run_program([sys.executable, "-c", "pass"]).peak_mib < 100
    assert len(held) == 300 * MIB
    assert 200 < run_program([sys.executable, "-c", "bytes(range(256)) * (800 << 10)"]).peak_mib < 300


def test_the_times_are_those_of_the_program_and_the_status_is_its_own() -> None:
    before = time.monotonic()
    run = run_program([sys.executable, "-c", "import time, sys; time.sleep(0.3); sys.exit(3)"])
    assert run.status == 3
    assert before <= run.began <= run.ended - 0.3 <= run.ended <= time.monotonic()
    assert run.seconds == run.ended - run.began


def test_the_processor_time_is_the_programs_own() -> None:
    spin = "import time; began = time.process_time()\nwhile time.process_time() - began < 0.3: pass"
    assert run_program([sys.executable, "-c", spin]).processor_s > 0.2
    assert run_program([sys.executable, "-c", "import time; time.sleep(1)"]).processor_s < 0.9


def test_a_signal_is_a_status_below_zero() -> None:
    assert run_program([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).status == -9


@pytest.mark.parametrize("text", ["", "text\n" * 100_000])
def test_the_program_reads_the_standard_input_that_it_is_given(tmp_path: Path, text: str) -> None:
    (tmp_path / "input").write_text(text)
    count = f"import sys; sys.exit(len(sys.stdin.read()) != {len(text)})"
    with (tmp_path / "input").open("rb") as file:
        assert run_program([sys.executable, "-c", count], stdin=file).status == 0
