"""A fleet that is full of markup: all of it is shown as text, nothing runs, no request leaves the origin."""

from __future__ import annotations

import json

MARKUP = (
    """<img src=x onerror="window.isTaken=1"><script>window.isTaken=1</script>"><a href=javascript:window.isTaken=1>"""
)
CLASS = {"kind": "DeviceClass", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "any"}, "spec": {}}


def device(name, **more):
    attributes = {"gpu.nvidia.com/productName": {"string": MARKUP}, "uuid": {"string": f"{name}{MARKUP}"}}
    attributes |= {"type": {"string": "gpu"}, "resource.kubernetes.io/pcieRoot": {"string": MARKUP}}
    attributes |= {"nvlinkDomain": {"string": MARKUP}, "numaNode": {"string": MARKUP}, MARKUP[:20]: {"string": "x"}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **more}


def hostile(folder):
    node = f"node-{MARKUP}"
    taint = {"key": MARKUP, "value": MARKUP, "effect": "NoExecute", "timeAdded": MARKUP}
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
    }
    spec["devices"] = [device("gpu-a"), device(f"gpu-b{MARKUP}", taints=[taint]), device("gpu-c")]
    result = {"request": MARKUP, "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-a"}
    ask = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]
    metadata = {
        "name": f"claim-{MARKUP}",
        "namespace": MARKUP,
        "annotations": {"a": MARKUP},
        "creationTimestamp": MARKUP,
    }
    held = {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": ask}}}
    held["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": MARKUP, "uid": "u"}],
    }
    many = [
        {
            "name": "gpu",
            "exactly": {
                "deviceClassName": "any",
                "count": 9,
                "selectors": [{"cel": {"expression": f'device.driver == "{MARKUP[:20]}"'}}],
            },
        }
    ]
    waiting = {
        "kind": "ResourceClaim",
        "metadata": {"name": f"a{MARKUP}", "namespace": "x"},
        "spec": {"devices": {"requests": many}},
    }
    objects = [CLASS, {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}, held, waiting]
    path = folder / "hostile.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    return str(path)


def drawn_from_data(page):
    """Return how many elements came from data, and whether a script of it ran. Links lead to our own pages alone."""
    return page.evaluate(
        "[document.querySelectorAll('main img, main script, main iframe, main a:not([href^=\"#/\"])').length,"
        " window.isTaken ?? 0]"
    )


def test_markup_from_the_cluster_is_shown_as_text_on_every_page(open_console, tmp_path):
    page = open_console("-f", hostile(tmp_path))
    page.wait_for_selector(".tile")
    assert MARKUP in page.locator(".row b").first.inner_text()
    for number in range(page.locator(".tile").count()):
        page.locator(".tile").nth(number).click()
        page.wait_for_selector('.panel h3:has-text("Attributes")')
        assert drawn_from_data(page) == [0, 0]
    page.evaluate("location.hash = '#/claims'")
    for number in range(2):
        page.locator(".claim").nth(number).click()
        page.wait_for_selector(".reasons")
        assert drawn_from_data(page) == [0, 0]
    page.evaluate("location.hash = '#/playground'")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(f"device.attributes['{MARKUP[:10]}'].x == 5")
    page.wait_for_selector(".remarks .message")
    page.locator(".device").first.click()
    page.wait_for_selector(".tree")
    assert drawn_from_data(page) == [0, 0]
    page.evaluate("location.hash = '#/health'")
    page.wait_for_selector('.bad:has-text("taint")')
    assert MARKUP[:20] in page.locator(".bench").inner_text()
    assert drawn_from_data(page) == [0, 0]
    page.evaluate("location.hash = '#/what-if'")
    page.get_by_label("Nodes drained").fill(f"node-{MARKUP}")
    page.get_by_role("button", name="Simulate").click()
    page.wait_for_selector(".verdicts .message")
    assert drawn_from_data(page) == [0, 0]


def test_markup_from_a_prometheus_is_shown_as_text(open_console, prometheus):
    prometheus.series = {MARKUP: [1.0] * 50}
    page = open_console("--fleet", "demo-h100", "--prometheus", prometheus.url)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/usage'")
    page.wait_for_selector(".legend .called")
    assert MARKUP in page.locator(".legend .called").first.inner_text()
    assert drawn_from_data(page) == [0, 0]


def test_a_link_can_not_bring_markup_into_a_page(open_console, tmp_path):
    from urllib.parse import quote

    page = open_console("--fleet", "demo-h100")
    page.wait_for_selector(".tile")
    for name in ("expression", "name", "kubernetes", "gates", "state", "labels", "objects", "picked", "by"):
        for target in ("fleet", "playground", "claims", "what-if", "usage"):
            page.evaluate(f"location.hash = '#/{target}?{name}={quote(MARKUP)}'")
            page.wait_for_selector("main > *")
            assert drawn_from_data(page) == [0, 0]
