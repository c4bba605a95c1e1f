"""A node with two GPUs that can be partitioned."""

import pytest

from tests.support.plugin.mig_parts import MigRig


@pytest.fixture
def rig(tmp_path):
    rig = MigRig(tmp_path)
    yield rig
    rig.close()
