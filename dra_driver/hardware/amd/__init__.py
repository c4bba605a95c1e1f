"""AMD's GPUs (Instinct, Radeon, APUs), from sysfs and the KFD topology alone: no library is loaded."""

from dra_driver.hardware.amd.vendor import AmdHardware

__all__ = ["AmdHardware"]
