"""What following the advice would free, on slices as an agent publishes them and claims that hold their devices."""

import pytest

from dra_driver.tools.usage.advice import SizeAdvice, UsageState, what_if
from dra_driver.tools.world.profiles import FleetOffer
from dra_driver.tools.world.world import World, add_profiles
from tests.support.metering.usage_week import H100

DRIVER = "gpu.nvidia.com"


@pytest.fixture(scope="module")
def slices():
    world = World(offer=FleetOffer(is_on_demand=True, minor=36))
    add_profiles(world, ["dgx-h100", "dgx-h100"])
    return world.of("ResourceSlice")


@pytest.fixture(scope="module")
def gpus(slices):
    found = {}
    for one in slices:
        for device in one["spec"].get("devices") or ():
            if device["attributes"]["type"] == {"string": "gpu"}:
                found.setdefault(one["spec"]["pool"]["name"], []).append(device["name"])
    return found


def claim(name, pool, *devices):
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": device} for device in devices]
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def advice(name, profile):
    return SizeAdvice("team", name, H100, "gpu", profile, "it used little", f"uid-{name}")


def tried(slices, claims, *sizes):
    return what_if(sizes, UsageState(slices, claims, "1.36", DRIVER))


def test_seven_small_claims_on_seven_gpus_fit_on_one_and_six_become_free(slices, gpus):
    pool, names = next(iter(gpus.items()))
    claims = [claim(f"c{index}", pool, names[index]) for index in range(8)]
    found = tried(slices, claims, *(advice(f"c{index}", "1g.10gb") for index in range(7)))
    assert (found.changes, found.gpus, found.unplaced) == (7, 6, ())
    assert found.nodes == (pool.partition("/")[0],)


def test_claims_without_advice_keep_their_gpus_and_advice_for_claims_that_are_gone_changes_nothing(slices, gpus):
    pool, names = next(iter(gpus.items()))
    claims = [claim("stays", pool, names[0]), claim("small", pool, names[1])]
    found = tried(slices, claims, advice("small", "3g.40gb"), advice("gone", "1g.10gb"), advice("stays", ""))
    assert (found.changes, found.gpus) == (1, 0)  # a partitioned GPU is not free


def test_a_claim_of_several_gpus_gets_as_many_smaller_devices(slices, gpus):
    pool, names = next(iter(gpus.items()))
    found = tried(slices, [claim("wide", pool, *names[:4])], advice("wide", "3g.40gb"))
    assert (found.changes, found.gpus) == (1, 2)


def test_smaller_claims_of_two_nodes_are_placed_together_on_one_of_them(slices, gpus):
    first, second = gpus
    claims = [claim("a", first, gpus[first][0]), claim("b", second, gpus[second][0])]
    found = tried(slices, claims, advice("a", "1g.10gb"), advice("b", "1g.10gb"))
    assert (found.changes, found.gpus, len(found.nodes)) == (2, 1, 1)


def test_a_claim_for_which_no_smaller_device_exists_is_named_and_keeps_its_gpu(slices, gpus):
    pool, names = next(iter(gpus.items()))
    found = tried(slices, [claim("odd", pool, names[0])], advice("odd", "9g.90gb"))
    assert (found.changes, found.gpus, found.unplaced) == (0, 0, ("team/odd",))


def test_without_advice_or_claims_no_gpu_becomes_free(slices):
    assert tried(slices, []) == tried(slices, [], advice("x", "1g.10gb"))
    assert tried(slices, []).gpus == 0
