"""All calls of the library in one object."""

from __future__ import annotations

from dra_driver.hardware.nvidia.nvml.gpu import GpuQueries
from dra_driver.hardware.nvidia.nvml.links import LinkQueries
from dra_driver.hardware.nvidia.nvml.mig_instances import MigInstanceCalls
from dra_driver.hardware.nvidia.nvml.mig_profiles import MigProfileQueries
from dra_driver.hardware.nvidia.nvml.settings import SettingCalls


class Nvml(GpuQueries, LinkQueries, SettingCalls, MigProfileQueries, MigInstanceCalls):
    """The library calls that this driver makes. Each worker has one object; all share the loaded library."""
