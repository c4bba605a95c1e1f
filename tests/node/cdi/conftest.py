"""Fixtures for roots of the NVIDIA vendor: a driver root, a /dev with real nodes, the kernel module's /proc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware.facts import PartitionFacts
from dra_driver.hardware.nvidia.edits import edits
from dra_driver.hardware.nvidia.published import NvidiaGpu
from tests.support.facts import PARTITION
from tests.support.nodes.driver_root import can_make_nodes, fake_dev, fake_proc


@pytest.fixture(autouse=True)
def _no_remembered_roots(monkeypatch):
    """Keep remembered looks at other roots out of the tests."""
    monkeypatch.setattr(edits, "_known_roots", type(edits._known_roots)())


@pytest.fixture
def make_nodes(tmp_path) -> None:
    """Skip the test where device nodes can't be made."""
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root and a file system that allows them")


@pytest.fixture
def dev(make_nodes, tmp_path) -> Path:
    """Return a /dev with two GPUs."""
    return fake_dev(tmp_path / "dev")


@pytest.fixture
def proc(tmp_path) -> Path:
    """Return a /proc with the kernel module's tables."""
    return fake_proc(tmp_path / "proc")


@pytest.fixture
def gpu() -> NvidiaGpu:
    """Return the first GPU."""
    return NvidiaGpu(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=1 << 36)


@pytest.fixture
def partition() -> PartitionFacts:
    """Return a MIG partition of the first GPU."""
    return replace(PARTITION, uuid="MIG-1", gi_id=3, start=0, memory_bytes=1 << 33)


@pytest.fixture
def no_proc(tmp_path) -> Path:
    return tmp_path / "no-proc"
