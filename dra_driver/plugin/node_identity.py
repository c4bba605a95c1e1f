"""Node identity: the driver and pool that this process serves, and the boot in which it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dra_driver.model.boot import boot_id_file, read_boot_id
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
    """Return the identity of this node. Its boot id decides whether effects of prepared claims can still exist."""
    path = Path(proc_root) / "sys/kernel/random/boot_id"
    try:
        boot_id = read_boot_id(proc_root)
    except OSError as exc:
        boot_id = ""
        log.warning(
            "boot id can't be read, so a reboot will not be noticed", extra=fields(file=str(path), err=str(exc))
        )
    return NodeIdentity(driver, pool_name(node, driver), boot_id)
