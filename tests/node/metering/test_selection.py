"""Selections of metrics: counters files of the common exporter."""

import pytest

from dra_driver.base.errors import InputError
from dra_driver.hardware.nvidia.dcgm_names import DCGM_NAMES
from dra_driver.node.metering.billing import default_selection, read_selection

FILE = """# Format,,
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_GPU_TEMP,    gauge, Temperature (in C).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder, and more
DCGM_FI_PROF_SM_OCCUPANCY, gauge, "Warps, resident"
DCGM_FI_DRIVER_VERSION, label, Driver Version
DCGM_FI_DEV_SERIAL, label, Serial
DCGM_FI_DEV_UNHEARD_OF, gauge, Nobody knows
DCGM_EXP_GPU_HEALTH_STATUS, gauge, Health
,,
"""


def test_a_counters_file_selects_names_types_meanings_and_labels(tmp_path):
    path = tmp_path / "counters.csv"
    path.write_text(FILE)
    found = read_selection(path, DCGM_NAMES)
    assert [(one.head.name, one.head.kind, one.head.meaning) for one in found.names] == [
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "Temperature (in C)."),
        ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder, and more"),
        ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "Warps, resident"),
    ]
    assert found.labels == ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_DEV_SERIAL")
    assert found.unknown == ("DCGM_FI_DEV_UNHEARD_OF", "DCGM_EXP_GPU_HEALTH_STATUS")


@pytest.mark.parametrize("line", ["DCGM_FI_DEV_GPU_TEMP", "a, b, c", "DCGM_FI_DEV_GPU_TEMP, gauge", "x" * 5000])
def test_a_malformed_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "counters.csv"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(InputError, match="line 2") as fault:
        read_selection(path, DCGM_NAMES)
    assert len(str(fault.value)) < 1000


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"#" * (1 << 20) + b"##"])
def test_a_file_that_is_missing_or_not_text_or_too_long_is_refused(tmp_path, content):
    path = tmp_path / "counters.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_selection(path, DCGM_NAMES)
    with pytest.raises(InputError):
        read_selection(tmp_path / "missing.csv", DCGM_NAMES)


def test_without_a_file_the_usual_names_are_published():
    assert len(default_selection(DCGM_NAMES).names) == 25
