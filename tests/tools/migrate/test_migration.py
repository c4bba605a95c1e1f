"""Migration of pods, quotas and configurations: the cases that are in no shape."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import InputError
from dra_driver.tools.migrate import SourceText, TemplateNames, migrate
from dra_driver.tools.migrate.resources import DeviceKind
from tests.tools.migrate.support.pods import gpus, pod, requests, run


@pytest.mark.parametrize("count", ["1.5", "-1", "x", "1m", True, "${GPUS}", None, 0.5, "{{inputs.parameters.n}}"])
def test_a_count_that_is_no_whole_number_is_bad_input(count):
    with pytest.raises(InputError, match=r"Pod p: spec.containers\[0\].*is not a whole number") as caught:
        run(pod([gpus("c", count)]))
    assert caught.value.code == "input.resource"


@pytest.mark.parametrize("count", [2, "2", "2000m", 2.0])
def test_a_whole_number_may_be_written_in_any_way(count):
    found, _ = run(pod([gpus("c", count)]))
    assert requests(found[0]) == {"gpu": ("gpu.nvidia.com", 2)}


def test_requests_that_differ_from_limits_are_bad_input():
    wire = pod([{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}}])
    with pytest.raises(InputError, match=r"requests \(1\) differ from limits \(2\)"):
        run(wire)


def test_requests_without_limits_are_migrated_and_reported():
    found, done = run(pod([{"name": "c", "resources": {"requests": {"nvidia.com/gpu": 1, "cpu": 1}}}]))
    assert found[1]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": 1}, "claims": [{"name": "gpu"}]}
    assert "requests-alone" in {row.code for row in done.losses}


def test_nothing_is_migrated_if_one_file_has_a_fault():
    good = yaml.safe_dump(pod([gpus("c", 1)]))
    with pytest.raises(InputError):
        migrate([SourceText("good.yaml", good), SourceText("bad.yaml", good.replace("gpu: 1", "gpu: one"))])


def test_resources_of_an_ephemeral_container_are_left_and_reported():
    wire = pod([gpus("c", 1)], ephemeralContainers=[gpus("debug", 1)])
    found, done = run(wire)
    assert found[1]["spec"]["ephemeralContainers"] == wire["spec"]["ephemeralContainers"]
    assert "ephemeral-container" in {row.code for row in done.losses}


def test_more_devices_than_a_claim_may_hold_are_spread_over_several_claims():
    found, _ = run(pod([gpus("a", 40), gpus("b", 30)]))
    *templates, made = found
    assert [sum(count for _, count in requests(one).values()) for one in templates] == [32, 8, 30]
    assert [row["name"] for row in made["spec"]["resourceClaims"]] == ["gpu", "gpu-2", "gpu-3"]


@pytest.mark.parametrize("name", ["on", "123", "x" * 63, "0x1f", "1e3"])
def test_odd_container_names_are_used_as_names_of_requests(name):
    found, _ = run(pod([gpus(name, 1), gpus("other", 1)]))
    asked = found[1]["spec"]["containers"][0]["resources"]["claims"][0]["request"]
    assert asked in requests(found[0])
    assert len(asked) <= 63


def test_long_names_are_cut_and_stay_different():
    one, two = "a" * 250 + "x", "a" * 250 + "y"
    _, done = run(pod([gpus("c", 1)], one), pod([gpus("c", 1)], two))
    assert len(set(done.templates)) == 2
    assert all(len(name) <= 63 for name in done.templates)


def test_names_do_not_depend_on_the_run():
    wire = pod([gpus("c", 1)])
    assert run(wire)[1].new == run(wire)[1].new


def test_a_name_of_a_different_template_in_the_cluster_is_not_used():
    names = TemplateNames()
    names.add("p-gpu", "other", {"devices": {}})
    _, done = run(pod([gpus("c", 1)]), templates=names)
    assert done.templates == ("p-gpu-2",)


def test_an_existing_template_with_the_same_content_is_used():
    wire = pod([gpus("c", 1)])
    made = run(wire)[0][0]
    found, done = run(made, wire)
    assert done.templates == ()
    assert found[1]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "p-gpu"


def test_pods_of_one_shape_in_an_object_share_a_template():
    template = {"spec": {"containers": [gpus("c", 1)]}}
    wire = {"apiVersion": "x/v1", "kind": "Gang", "metadata": {"name": "g"}, "spec": {"a": template, "b": template}}
    found, done = run(json.loads(json.dumps(wire)))
    assert done.templates == ("g-gpu",)
    assert found[1]["spec"]["a"] == found[1]["spec"]["b"]


def test_a_toleration_is_added_once_and_only_where_none_tolerates():
    key = {"key": "nvidia.com/gpu", "operator": "Exists"}
    for known, count in (
        ([key], 1),
        ([{**key, "effect": "NoExecute"}], 2),
        ([{**key, "operator": "Equal", "value": "present", "effect": "NoSchedule"}], 2),
        ([{"operator": "Exists"}], 1),
    ):
        found, _ = run(pod([gpus("c", 1), gpus("d", 1)], tolerations=known))
        assert len(found[1]["spec"]["tolerations"]) == count


def test_shared_resources_become_shares():
    found, _ = run(pod([gpus("c", 1, "nvidia.com/mig-1g.10gb.shared"), gpus("d", 2, "nvidia.com/gpu.shared")]))
    assert requests(found[0]) == {"c": ("mig-share.nvidia.com", 1), "d": ("gpu-share.nvidia.com", 2)}
    found, _ = run(pod([gpus("c", 1)]), known={"nvidia.com/gpu": DeviceKind(is_share=True)})
    assert requests(found[0]) == {"gpu": ("gpu-share.nvidia.com", 1)}


def test_the_profile_of_a_partition_with_media_extensions_is_written_with_a_plus():
    found, _ = run(pod([gpus("c", 1, "nvidia.com/mig-1g.10gb.me")]))
    (row,) = found[0]["spec"]["spec"]["devices"]["requests"]
    assert '"1g.10gb+me"' in row["exactly"]["selectors"][0]["cel"]["expression"]


def test_init_containers_never_make_a_pod_hold_more_than_before():
    init = [gpus("first", 3), gpus("second", 1)]
    found, _ = run(pod([gpus("main", 2)], initContainers=init))
    assert sum(count for _, count in requests(found[0]).values()) == 3
    asked = {}
    for one in [*found[1]["spec"]["initContainers"], *found[1]["spec"]["containers"]]:
        rows = [requests(found[0])[row["request"]][1] for row in one["resources"]["claims"]]
        asked[one["name"]] = sum(rows)
    assert asked == {"first": 3, "second": 1, "main": 2}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=3),
    st.lists(st.integers(0, 5), max_size=3),
)
def test_every_container_gets_as_many_as_it_had_and_the_pod_no_more(mains, inits):
    containers = [
        gpus(f"c{n}", count, f"nvidia.com/{'mig-1g.5gb' if mig else 'gpu'}") for n, (count, mig) in enumerate(mains)
    ]
    init = [gpus(f"i{n}", count) for n, count in enumerate(inits)]
    wire = pod(containers, **({"initContainers": init} if init else {}))
    found, done = run(wire)
    whole = sum(count for count, mig in mains if not mig)
    parts = sum(count for count, mig in mains if mig)
    if not done.templates:
        assert whole + parts + sum(inits) == 0
        return
    rows = requests(found[0])
    held = {
        name: sum(c for device, c in rows.values() if device == name) for name in ("gpu.nvidia.com", "mig.nvidia.com")
    }
    assert held == {"gpu.nvidia.com": max([whole, *inits]), "mig.nvidia.com": parts}
    made = found[-1]["spec"]
    for one, (count, _) in zip(made["containers"], mains, strict=True):
        assert held_by(one, rows) == count
    for one, count in zip(made.get("initContainers", ()), inits, strict=True):
        assert held_by(one, rows) == count


def held_by(container, rows):
    claims = container.get("resources", {}).get("claims", ())
    if any("request" not in row for row in claims):
        return sum(count for _, count in rows.values())
    return sum(rows[row["request"]][1] for row in claims)
