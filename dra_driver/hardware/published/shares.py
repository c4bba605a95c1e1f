"""Published names of shares that vendors have in common: how a device is shared, and what keeps its users apart."""

from __future__ import annotations

from dra_driver.hardware.published import values
from dra_driver.hardware.published.rows import SHARE, SHARES, Owner, Published, ValueKind

SHARE_FORM: tuple[Published, ...] = (
    Published(
        "sharedBy",
        ValueKind.STRING,
        "What shares are counted in: `replicas`, `memory` or `compute`.",
        SHARE,
        values.of_share("mode"),
        owner=Owner.OURS,
    ),
    Published(
        "replicas",
        ValueKind.INT,
        "How many replicas share the device; absent where shares are counted in memory or compute.",
        SHARE,
        lambda f: f.replicas,
        owner=Owner.OURS,
    ),
    Published(
        "replicaIndex",
        ValueKind.INT,
        "Number of this replica, from 0; absent where one device is allocated many times.",
        SHARE,
        values.of_share("index"),
        owner=Owner.OURS,
    ),
)

ENFORCEMENT = Published(
    "enforcement",
    ValueKind.STRING,
    "What keeps a user within its share: `none`, `cooperative` (limits in its own environment) or `hard` (the "
    "driver refuses more memory).",
    SHARE,
    values.of_share("enforcement"),
    owner=Owner.OURS,
)

SHARES_LEFT = Published(
    SHARES,
    ValueKind.QUANTITY,
    "Shares of a device that can be allocated many times; each allocation takes one.",
    SHARE,
    lambda _: None,
    owner=Owner.OURS,
)
