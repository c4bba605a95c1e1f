"""Paths of the Kubernetes API: how names become part of them, and that one module alone contains them."""

from __future__ import annotations

import re
from pathlib import Path

import dra_driver
from dra_driver.kube import paths

ROOT = Path(dra_driver.__file__).parent


def test_a_slash_in_an_objects_name_does_not_divide_a_path():
    assert paths.claim_path("a/b", "..") == "/apis/resource.k8s.io/v1/namespaces/a%2Fb/resourceclaims/.."
    assert paths.slice_path("x/../y") == "/apis/resource.k8s.io/v1/resourceslices/x%2F..%2Fy"
    assert paths.secret_path("ours", "tls") == "/api/v1/namespaces/ours/secrets/tls"
    assert paths.within(paths.EVENTS, "default") == "/api/v1/namespaces/default/events"


def test_no_other_module_contains_a_path():
    spelt = re.compile(r"""["'](/apis/|/api/v1)""")
    own = {ROOT / "kube" / "paths.py", ROOT / "simulator" / "store.py"}  # the second one serves them
    own |= set((ROOT / "tools" / "console").rglob("*.py"))  # the console has an API of its own under such a path
    own.add(ROOT / "tools" / "usage" / "from_prometheus.py")  # and so has Prometheus
    found = [path for path in ROOT.rglob("*.py") if path not in own and spelt.search(path.read_text())]
    assert found == []
