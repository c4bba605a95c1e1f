"""Ledgers with claims in them."""

import pytest

from tests.support.plugin.parts import Rig


@pytest.fixture
def two(rig: Rig) -> Rig:
    """Two prepared claims, and the agent stopped."""
    for uid, device in (("u1", "gpu-0"), ("u2", "gpu-1")):
        rig.allocate(uid, device)
        rig.prepare(uid)
    rig.ledger.close()
    return rig
