"""Which version of CUDA a pod needs, and which versions of the driver meet the need."""

from __future__ import annotations

import pytest

from dra_driver.base.versions import Semver
from dra_driver.selectors import compile_selector
from dra_driver.tools.webhook.review import ANNOTATION, VARIABLE, cuda_requirements


def pod(value, **metadata):
    container = {"name": "main", "env": [{"name": VARIABLE, "value": value}]}
    return {"metadata": metadata, "spec": {"containers": [container]}}


@pytest.mark.parametrize(
    ("value", "cuda", "driver", "is_met"),
    [
        ("cuda>=12.4", "12.4.0", "550.0.0", True),
        ("cuda>=12.4", "12.3.9", "550.0.0", False),
        ("cuda>=12.4 brand=tesla,driver>=535,driver<536", "12.2.0", "535.10.0", True),
        ("cuda>=12.4 brand=tesla,driver>=535,driver<536", "12.2.0", "545.10.0", False),
        ("cuda>=12.4,cuda<13", "13.0.0", "580.0.0", False),
        ("cuda>=12.4 something-new", "11.0.0", "450.0.0", True),
    ],
)
def test_a_requirement_is_met_by_matching_versions_of_cuda_and_driver(value, cuda, driver, is_met):
    [need] = cuda_requirements(pod(value))
    assert need.is_met_by(Semver.parse(cuda), Semver.parse(driver)) is is_met


def test_the_selector_to_paste_compiles_and_asks_for_that_version():
    [need] = cuda_requirements(pod("cuda>=12.4 brand=tesla,driver>=535"))
    selector = compile_selector(need.selector)
    for version, matches in (("12.4.0", True), ("12.10.0", True), ("12.3.0", False)):
        device = {"name": "a", "attributes": {"cudaDriverVersion": {"version": version}}}
        assert selector.matches(device, "gpu.nvidia.com") is matches


def test_an_annotation_states_the_version_for_images_that_do_not():
    [need] = cuda_requirements({"metadata": {"annotations": {ANNOTATION: "13.1"}}})
    assert need.stated_by == f"annotation {ANNOTATION}"
    assert not need.is_met_by(Semver.parse("13.0.0"), None)


@pytest.mark.parametrize("value", ["", "cuda", "cuda>=x", "driver>=535", "arch>=9.0", "cuda>=99999", ",,, ,"])
def test_what_names_no_cuda_version_needs_nothing(value):
    assert list(cuda_requirements(pod(value))) == []
    assert list(cuda_requirements({"metadata": {"annotations": {ANNOTATION: value}}})) == []
