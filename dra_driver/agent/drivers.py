"""Drivers: the options of each driver that this process runs, one for each vendor that the flags name.

In: the values of the flags. Out: options, one for each driver. Options that concern one vendor's GPUs are left out for
the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.agent.options import Options, asks_for_abilities, options_of
from dra_driver.hardware.choose import AUTO, vendors_listed
from dra_driver.hardware.vendors import load_vendor
from dra_driver.model.errors import UsageError
from dra_driver.model.vendors import DEFAULT_VENDOR, VENDORS, RegisteredVendor


def drivers_of(values: Mapping[str, str], *, is_named: bool) -> tuple[Options, ...]:
    """Return the options of each driver that the flags name; `is_named` is whether the driver's name was given.

    "auto" means every vendor of the registry, each as soon as its hardware is there; with a driver's name it means only
    the driver of the default vendor. Raises: UsageError.
    """
    choice = values["hardware"]
    if choice == AUTO and not is_named:
        return tuple(_of_vendor(values, vendor, is_optional=vendor is not DEFAULT_VENDOR) for vendor in VENDORS)
    if "," not in choice or choice.startswith("simulated:"):
        return (options_of(values),)
    if is_named:
        text = f"--driver-name names one driver, but --hardware={choice} has several"
        raise UsageError("driver-name", text, hint="leave --driver-name out: each vendor has its own")
    return tuple(_of_vendor(values, vendor, is_optional=False) for vendor in vendors_listed(choice))


def _of_vendor(values: Mapping[str, str], vendor: RegisteredVendor, *, is_optional: bool) -> Options:
    own = {**values, "hardware": vendor.name, "driver_name": vendor.driver}
    if vendor is not DEFAULT_VENDOR:
        own["node_labels"] = "off"  # only one driver may write the labels
    if asks_for_abilities(
        values
    ):  # an option that this vendor does not support is meant for another vendor of the process
        able = load_vendor(vendor.name)
        own["sharing_config"] = own["sharing_config"] if able.sharing else ""
        own["remediation"] = own["remediation"] if able.is_reset else "off"
        own["validate"] = own["validate"] if able.is_tested else "0"
    return options_of(own, waits_for_bus=is_optional)
