"""A simulated machine in which one GPU reports the health that a test writes."""

import yaml

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.hardware.simulated.profile import FOLDER
from dra_driver.simulator.store import SLICES

FAULTY = "0000:1b:00.0"
NAME = "gpu-0000-1b-00-0"


def write_profile(path, **health):
    """Write the profile of the demo machine, in which one GPU reports this health."""
    content = yaml.safe_load((FOLDER / "demo-h100.yaml").read_text())
    for gpu in content["gpus"]:
        gpu.pop("mig", None)
        if gpu["pci"] == FAULTY:
            gpu["health"] = {"recoveryAction": 0, **health}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content))
    new.replace(path)


def taints(here):
    """Return the taints of each published device that has any: key without domain -> value."""
    slices = [s for s in here.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
    return {
        device["name"]: {taint["key"].rpartition("/")[2]: taint.get("value", "") for taint in device["taints"]}
        for one in slices
        for device in one["spec"].get("devices", ())
        if device.get("taints")
    }
