"""Which libraries the test of an NVIDIA device is given."""

import pytest

from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.port import Roots
from tests.support.facts import FULL_GPU
from tests.support.fake_cuda import FakeCuda

pytestmark = pytest.mark.gcc


def test_libraries_come_from_the_driver_root_and_compilers_are_loaded_in_advance(tmp_path):
    root = tmp_path / "root"
    folder = FakeCuda(root / "usr/lib/x86_64-linux-gnu").folder
    for name in ("libnvidia-ptxjitcompiler.so.1", "libnvidia-gpucomp.so.580.95", "libnvidia-ml.so.1"):
        (folder / name).touch()
    found = NvidiaHardware(Roots(driver_mount=str(root))).compute_program(FULL_GPU, None, is_thorough=False)
    assert found.request["candidates"][0] == str(folder / "libcuda.so.1")
    names = ["libnvidia-gpucomp.so.580.95", "libnvidia-ptxjitcompiler.so.1"]
    assert found.request["helpers"] == [str(folder / name) for name in names]
    assert found.environment["CUDA_VISIBLE_DEVICES"] == FULL_GPU.uuid
