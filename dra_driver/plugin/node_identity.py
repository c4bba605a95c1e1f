"""Node identity: the driver and pool that this process serves, and the boot in which it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dra_driver.model.machine import boot_id_file, read_boot_id
from dra_driver.model.names import pool_name
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The driver's name, the pool of this node, and the id of the current boot."""

    driver: str
    pool: str
    boot_id: str


def this_node(node: str, driver: str, proc_root: str | Path) -> NodeIdentity:
    """Return the identity of this node; without a readable boot id, log that and leave it empty.

    The boot id shows whether the effects of prepared claims can still be there.
    """
    try:
        boot_id = read_boot_id(proc_root)
    except OSError as exc:
        boot_id = ""
        keys = fields(file=str(boot_id_file(proc_root)), err=str(exc))
        log.warning("boot id can't be read: a reboot won't be noticed", extra=keys)
    return NodeIdentity(driver, pool_name(node, driver), boot_id)
