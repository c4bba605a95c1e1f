"""Nodes with two GPUs: without sharing, in time slices, and under MPS."""

from pathlib import Path

import pytest

from dra_driver.base.wire import Interval, MpsSettings, TimeSlicingSettings
from tests.support.plugin.sharing_parts import SharingRig


@pytest.fixture
def rig(tmp_path: Path):
    yield from made(tmp_path, None)


@pytest.fixture
def sliced(tmp_path: Path):
    yield from made(tmp_path, TimeSlicingSettings(Interval.LONG))


@pytest.fixture
def served(tmp_path: Path):
    yield from made(tmp_path, MpsSettings(50, 40 << 30, multi_user=True))


def made(root: Path, how):
    rig = SharingRig(root, how)
    yield rig
    rig.close()
