"""Values that can't be true are left out, and the others of their reading are kept."""

import math

import pytest

from dra_driver.hardware.metered import Measure, MeterReport, Reading
from dra_driver.node.metering.billing import without_implausible_values

UNKNOWN_32, UNKNOWN_64 = float((1 << 32) - 1), float((1 << 64) - 1)


def kept(values):
    (reading,) = without_implausible_values(MeterReport((Reading("0000:01:00.0", 1.0, values),))).readings
    return reading.values


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, UNKNOWN_64, -1e9])
@pytest.mark.parametrize("quantity", [*Measure, "fanRpm"])
def test_a_value_that_is_impossible_for_every_quantity_is_left_out(quantity, value):
    assert kept({quantity: value, Measure.POWER_LIMIT_W: 700.0}) == {Measure.POWER_LIMIT_W: 700.0}


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (Measure.GPU_PERCENT, 255.0), (Measure.GRAPHICS_RATIO, 87.0), (Measure.SM_CLOCK_MHZ, UNKNOWN_32),
        (Measure.TEMPERATURE_C, UNKNOWN_32), (Measure.POWER_W, UNKNOWN_32), (Measure.GPU_PERCENT, -1.0),
        (Measure.MEMORY_USED_BYTES, UNKNOWN_64), (Measure.ENERGY_MJ_TOTAL, -5.0),
    ],
)  # fmt: skip
def test_a_value_that_no_device_can_have_is_left_out(quantity, value):
    assert kept({quantity: value}) == {}


@pytest.mark.parametrize(
    ("quantity", "value", "shown"),
    [
        (Measure.GPU_PERCENT, 101.0, 100.0), (Measure.GRAPHICS_RATIO, 1.0002, 1.0), (Measure.GPU_PERCENT, 0.0, 0.0),
        (Measure.TEMPERATURE_C, -5.0, -5.0), (Measure.ENERGY_MJ_TOTAL, 7e12, 7e12), ("fanRpm", 900.0, 900.0),
    ],
)  # fmt: skip
def test_a_possible_value_is_kept_and_one_rounded_above_the_whole_is_lowered_to_it(quantity, value, shown):
    assert kept({quantity: value}) == {quantity: shown}
