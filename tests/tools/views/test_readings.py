"""What GPUs do now, from the metrics of every vendor."""

from __future__ import annotations

from datetime import UTC, datetime

import jsonschema
import pytest

from dra_driver.base.errors import ApiError, InputError
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.usage.dashboards import readings
from dra_driver.tools.usage.from_prometheus import PrometheusAddress
from dra_driver.tools.world.access import DocumentKind
from tests.support.metering.prometheus_double import PrometheusDouble

NOW = datetime(2026, 11, 28, 9, tzinfo=UTC)


@pytest.fixture
def prometheus():
    double = PrometheusDouble([])
    yield double
    double.stop()


def series(name, value, **labels):
    return {"__name__": name, **labels}, value


def test_readings_of_every_vendor_have_the_units_and_names_of_devices(prometheus):
    nvidia = {"Hostname": "n1", "pci_bus_id": "00000000:1B:00.0"}
    amd = {"hostname": "n2", "pci_bus_id": "0000:c1:00.0"}
    intel = {"node": "n3", "pci_bdf": "0000:4d:00.0"}
    prometheus.readings = [
        series("DCGM_FI_DEV_GPU_UTIL", 74.0, **nvidia),
        series("DCGM_FI_DEV_FB_USED", 1024.0, **nvidia),
        series("DCGM_FI_DEV_GPU_TEMP", 61.0, **nvidia),
        series("DCGM_FI_DEV_POWER_USAGE", 412.5, **nvidia),
        series("gpu_gfx_activity", 12.0, **amd),
        series("hw_gpu_utilization_ratio", 0.5, **intel),
        series("DCGM_FI_DEV_GPU_TEMP", 99.0, Hostname="other", pci_bus_id="00000000:1B:00.0"),
        series("DCGM_FI_DEV_GPU_TEMP", 99.0, Hostname="n1", pci_bus_id="<img src=x>"),
    ]
    found = readings(PrometheusAddress(prometheus.url), ["n1", "n2", "n3.zone"], NOW).wire()
    jsonschema.validate(found, schema_of(DocumentKind.READINGS))
    assert found["nodes"]["n1"] == {
        "gpu-0000-1b-00-0": {"busyPercent": 74.0, "memoryBytes": 1 << 30, "celsius": 61.0, "watts": 412.5}
    }
    assert found["nodes"]["n2"]["gpu-0000-c1-00-0"]["busyPercent"] == 12.0
    assert found["nodes"].keys() == {"n1", "n2"}
    assert [query for query, _ in prometheus.asked if "n3[.]zone" in query], "a dot in a name matches any letter"


@pytest.mark.parametrize("nodes", [[], [""], ['n1"} or vector(1)'], ["n"] * 101, ["a|b"]])
def test_only_names_of_nodes_reach_a_query(prometheus, nodes):
    with pytest.raises(InputError):
        readings(PrometheusAddress(prometheus.url), nodes, NOW)
    assert prometheus.asked == []


@pytest.mark.parametrize("answer", [b"[]", b'{"status": "success", "data": {"resultType": "vector", "result": [5]}}'])
def test_an_answer_that_is_none_is_a_fault(prometheus, answer):
    prometheus.answer = answer
    with pytest.raises(ApiError):
        readings(PrometheusAddress(prometheus.url), ["n1"], NOW)
