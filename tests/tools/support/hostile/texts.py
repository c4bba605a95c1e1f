"""Values for any place of an object, and texts for any argument."""

from __future__ import annotations

from typing import Any

from tests.tools.support.hostile.objects import DRIVER

VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, 2**63, float("nan"), float("inf"), "", "x", "\x00", "\ud800", "é\u202e",
    "x" * 100_000,
    "1e999999999", "-1", "9" * 5000, [], {}, [None], [[]], {"x": None}, {"": ""}, {1: 2}, [{}], "device.", "(" * 3000,
]  # fmt: skip
TEXTS = [
    "", "-", "--", "=", "a=b=c", "l40s=", "l40s=-1", "l40s=99999999999999999999", "=3", "x" * 300, "x" * 5000,
    "x" * 200_000, "a/" * 3000, "\udcff", "é" * 200, "\n", "/", "/dev/null", "/dev/zero", "/proc/self/mem",
    "~", "*", "1.35", "99.99", "-1", "DRAPartitionableDevices=true", "nan", "((((", "simulated:",
    "simulated:" + "x" * 5000, "nvidia", "auto", "'", "[", "{", "$(x)", "%s%n", "default", "c", "p", DRIVER,
]  # fmt: skip
