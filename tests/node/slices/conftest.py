"""Clusters for tests of the controller."""

import pytest

from tests.node.slices.support.cluster import Cluster


@pytest.fixture
def make_cluster(tmp_path):
    clusters = []

    def make(**options) -> Cluster:
        clusters.append(Cluster(tmp_path, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make_cluster):
    return make_cluster()
