import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.hardware.simulated.models import Placement, model_names, placement_faults, read_model

H100 = read_model("h100-sxm5-80gb", []).mig
A30 = read_model("a30", []).mig


def faults(table, *geometry):
    return [
        fault
        for _, fault in placement_faults(table, [Placement(table.profile(name), start) for name, start in geometry])
    ]


def test_a_balanced_geometry_is_possible():
    assert faults(H100, ("1g.10gb", 2), ("1g.10gb", 3), ("2g.20gb", 0), ("3g.40gb", 4)) == []


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        ([("3g.40gb", 2)], "a 3g.40gb starts at one of [0, 4], not at 2"),
        ([("3g.40gb", 0), ("1g.10gb", 3)], "1g.10gb at 3 overlaps 3g.40gb at 0"),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], "at most 1 of 1g.10gb+me fit"),
        ([("4g.40gb", 0), ("1g.20gb", 4), ("3g.40gb", 4)], "8 compute slices are used, but the GPU has 7"),
    ],
)
def test_an_impossible_geometry_is_refused_with_its_reason(geometry, expected):
    assert expected in faults(H100, *geometry)


def test_a_profile_is_found_by_its_whole_name():
    table = read_model("rtx-pro-6000-blackwell", []).mig
    ids = {
        name: table.profile(name).gi_profile_id for name in ("1g.24gb", "1g.24gb-me", "1g.24gb+me", "1g.24gb+me.all")
    }
    assert len(set(ids.values())) == 4
    assert table.profile("1g.24") is None


def test_a_profile_has_no_placement_where_no_source_gives_one():
    assert A30.profile("2g.12gb+me").starts == ()
    assert faults(A30, ("2g.12gb+me", 0)) == ["it is not known where a 2g.12gb+me may start"]


@pytest.mark.parametrize("name", model_names())
def test_inferred_placements_are_marked_and_only_on_models_where_none_were_seen(name):
    table = read_model(name, []).mig
    marked = {profile.are_starts_inferred for profile in table.profiles} if table else set()
    assert marked == ({True} if name in {"h200", "gh200", "b200", "gb200"} else {False} if table else set())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(H100.profiles), st.integers(0, 7)), max_size=8))
def test_a_geometry_has_no_faults_exactly_when_it_fits_the_gpu(geometry):
    placements = [Placement(profile, start) for profile, start in geometry]
    covered = [index for placement in placements for index in placement.slices]
    fits = (
        len(set(covered)) == len(covered)
        and all(placement.start in placement.profile.starts for placement in placements)
        and sum(profile.compute_slices for profile, _ in geometry) <= H100.compute_slices
        and all(sum(p is profile for p, _ in geometry) <= profile.max_instances for profile, _ in geometry)
    )
    assert fits == (not list(placement_faults(H100, placements)))
