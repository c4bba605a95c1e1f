"""Ledgers with claims in them."""

import pytest

from tests.support.plugin.parts import Rig


@pytest.fixture
def prepared(rig: Rig) -> Rig:
    """A rig with two prepared claims, whose agent has stopped."""
    for uid, device in (("u1", "gpu-0"), ("u2", "gpu-1")):
        rig.allocate(uid, device)
        rig.prepare(uid)
    rig.ledger.close()
    return rig
