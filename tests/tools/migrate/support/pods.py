"""Pods that ask for extended resources, and their migration."""

from __future__ import annotations

import yaml

from dra_driver.tools.migrate import SourceText, migrate


def pod(containers, name="p", kind="Pod", **spec):
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def box(name, **limits):
    found = {key.replace("__", "/").replace("_", "."): value for key, value in limits.items()}
    return {"name": name, "image": "i", "resources": {"limits": found}}


def gpus(name, count, resource="nvidia.com/gpu"):
    return {"name": name, "image": "i", "resources": {"limits": {resource: count}}}


def run(*wires, **options):
    text = "---\n".join(yaml.safe_dump(wire, sort_keys=False) for wire in wires)
    (done,) = migrate([SourceText("test.yaml", text)], **options)
    return list(yaml.safe_load_all(done.new)), done


def requests(template):
    return {
        row["name"]: (row["exactly"]["deviceClassName"], row["exactly"].get("count", 1))
        for row in template["spec"]["spec"]["devices"]["requests"]
    }
