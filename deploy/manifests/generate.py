"""The manifests of this folder, rendered from the chart, for clusters where helm is not used.

    python deploy/manifests/generate.py [--check] [--helm PATH]

In: the chart. Out: rbac.yaml, admission-policy.yaml and driver.yaml (everything that is on by default) in this folder,
options below options/ (webhook.yaml, config-policy.yaml, mps-tenants.yaml, claim-status.yaml, node-features.yaml,
console.yaml, node-condition.yaml), and ../rules/prometheus-rule.yaml.
`--check` writes nothing and exits with 1 if a file differs from what the chart renders.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE.parent / "helm"
NOTE = "# Generated from the chart by deploy/manifests/generate.py: change that, not this.\n"
VALUES = "namespace.create=true,webhook.enabled=true,configPolicy.enabled=true,rules.enabled=true"
# What renders a template that is off by default.
SWITCHES = {
    "tenants": "mps.tenants=namespace",
    "claim-status": "claimStatus=true",
    "node-features": "nodeLabels=object",
    "console": "console.enabled=true",
    "node-condition": "health.nodeCondition=true",
}
# The order in which they have to be applied.
FILES = {
    "rbac.yaml": ("namespace", "serviceaccount", "rbac", "view", "viewer"),
    "admission-policy.yaml": ("admission-policy",),
    "driver.yaml": (
        *("namespace", "serviceaccount", "rbac", "view", "viewer", "admission-policy", "quota"),
        *("deviceclasses", "daemonset", "metrics"),
    ),
    "options/webhook.yaml": ("webhook",),
    "options/config-policy.yaml": ("config-policy",),
    "options/mps-tenants.yaml": ("tenants",),
    "options/claim-status.yaml": ("claim-status",),
    "options/node-features.yaml": ("node-features",),
    "options/console.yaml": ("console",),
    "options/node-condition.yaml": ("node-condition",),
    "../rules/prometheus-rule.yaml": ("rules",),
}


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--helm", default=shutil.which("helm") or "", help="the helm program")
    options = parser.parse_args()
    stale = []
    for name, templates in FILES.items():
        text = render(
            options.helm, templates, ",".join([VALUES, *(SWITCHES[one] for one in templates if one in SWITCHES)])
        )
        if options.check:
            stale += [name] if (HERE / name).read_text() != text else []
        else:
            (HERE / name).write_text(text)
    for name in stale:
        print(f"{name} is not what the chart renders: run deploy/manifests/generate.py", file=sys.stderr)
    return int(bool(stale))


def render(helm: str, templates: tuple[str, ...], values: str) -> str:
    """Return the rendered templates as one file."""
    documents = []
    for template in templates:
        command = [helm, "template", "dra-driver", str(CHART), "--namespace", "dra-driver", "--kube-version", "1.35.0"]
        command += [
            "--set",
            values,
            "--show-only",
            f"templates/{template}.yaml",
        ]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        said = re.sub(r"^# Source: .*\n", "", said, flags=re.MULTILINE).replace(
            "managed-by: Helm", "managed-by: kubectl"
        )
        documents += [part.strip("\n") for part in re.split(r"^---\n", said, flags=re.MULTILINE) if part.strip()]
    return NOTE + "\n---\n".join(documents) + "\n"


if __name__ == "__main__":
    sys.exit(main())
