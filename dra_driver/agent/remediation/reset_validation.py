"""Reset validation: shows that a GPU that was reset computes correctly, before it is offered.

In: a GPU that no claim or process uses. Out: the result of validation, at level 1 or higher if the vendor has a test.
Whether the library answers and reports no fault has been checked before.
"""

from __future__ import annotations

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import ComputeTested, Hardware
from dra_driver.validation.result import ValidationLevel, ValidationResult, ValidationVerdict
from dra_driver.validation.setting import ValidationSetting
from dra_driver.validation.validation_lock import ValidationLock
from dra_driver.validation.validator import DeviceHolders, Validator


class ResetValidation:
    """Tests GPUs after their remediation, at the level of the agent's validation; with `none` no test is made."""

    def __init__(
        self, hardware: Hardware, lock: ValidationLock, holders: DeviceHolders, setting: ValidationSetting
    ) -> None:
        level = setting.level
        self._level = level if level is None else max(level, ValidationLevel.COMPUTE)
        self._has_test = self._level is ValidationLevel.COMMAND or isinstance(hardware, ComputeTested)
        self._validator = Validator(hardware, lock, holders, command=setting.command)

    def run(self, gpu: GpuFacts) -> ValidationResult:
        """Test a GPU. One in MIG mode is not tested as a whole; its partitions are tested when they are created."""
        if self._level is None or not self._has_test or gpu.mig_enabled:
            return ValidationResult(ValidationVerdict.PASSED, ValidationLevel.READING)
        return self._validator.validate(gpu, None, self._level)
