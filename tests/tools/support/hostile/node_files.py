"""Valid flags of agent, supervisor, webhook and demo, and valid files that these flags name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.support.api.certificates import make_ca, make_leaf

ROOT = Path(__file__).resolve().parents[4]
Wire = dict[str, Any]

KUBECONFIG: Wire = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9", "insecure-skip-tls-verify": False}}],
    "users": [{"name": "u", "user": {"token": "x"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
}
SHARING: Wire = {
    "version": "rules/v1",
    "rules": [
        {"name": "a", "match": {"products": ["*"]}, "replicas": 4, "sharing": {"strategy": "TimeSlicing"}},
        {"name": "b", "match": {"profiles": ["1g.10gb"]}, "memory": {"default": "1Gi", "step": "1Gi"}},
    ],
}
DEVICE_PLUGIN: Wire = {
    "version": "v1",
    "sharing": {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
}
GEOMETRIES: Wire = {
    "version": "v1",
    "mig-configs": {
        "two": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 4, "3g.40gb": 1}}],
        "some": [{"devices": [0], "device-filter": ["0x233010DE"], "mig-enabled": False}],
    },
}
PROFILE: Wire = yaml.safe_load((ROOT / "dra_driver/hardware/simulated/profiles/demo-h100.yaml").read_text())
FOLDERS = ("cdi", "registry", "plugins", "pod-resources", "tls", "examples", "examples/node")


EXAMPLE: Wire = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "one"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}
EXPECTED = "# expect: claim one holds 1\n"


class Workplace:
    """A folder with valid files, made anew for each case, and the flags that name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = folder / "authority"
        authority.mkdir()
        self._ca = make_ca(authority, "ca")
        self._pair = make_leaf(authority, "localhost", "ca")

    def renew(self) -> None:
        """Replace the folders and files with valid ones."""
        for name in FOLDERS:
            _remove(self.folder / name)
            (self.folder / name).mkdir()
        for name, wire in (
            ("kubeconfig", KUBECONFIG),
            ("sharing.yaml", SHARING),
            ("device-plugin.yaml", DEVICE_PLUGIN),
            ("geometries.yaml", GEOMETRIES),
            ("profile.yaml", PROFILE),
        ):
            self.write(name, yaml.safe_dump(wire))
        for name, file in zip(("tls.crt", "tls.key"), self._pair, strict=True):
            self.write(f"tls/{name}", file.read_bytes())
        self.write("ca.crt", self._ca.read_bytes())
        self.write("token", "x")
        self.write("examples/one.yaml", EXPECTED + yaml.safe_dump(EXAMPLE))
        self.write("examples/node/profile.yaml", yaml.safe_dump(PROFILE))
        self.write("examples/node/rules.yaml", yaml.safe_dump(SHARING))

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file, whatever is there already."""
        path = self.folder / name
        _remove(path)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    def replace(self, name: str, by: Path) -> None:
        """Put a link to another file where a file is."""
        path = self.folder / name
        _remove(path)
        path.symlink_to(by)

    def arguments(self, command: str) -> list[str]:
        """Return the arguments of a command that works."""
        at = str(self.folder)
        kubelet = ["--kubelet-plugins-directory-path", f"{at}/plugins"]
        hardware = ["--hardware", f"simulated:{at}/profile.yaml"]
        api = ["--kubeconfig", f"{at}/kubeconfig"]
        if command == "agent":
            kubelet += ["--kubelet-registrar-directory-path", f"{at}/registry", "--cdi-root", f"{at}/cdi"]
            files = ["--sharing-config", f"{at}/sharing.yaml", "--mig-config", f"{at}/geometries.yaml"]
            return [command, "--node-name", "n", "--mig-geometry", "two", *api, *kubelet, *hardware, *files]
        if command == "mps":
            return [command, *kubelet, *hardware]
        if command == "webhook":
            tls = ["--tls-dir", f"{at}/tls", "--client-ca", f"{at}/ca.crt"]
            return [command, "--address", "127.0.0.1:0", *api, *tls]
        return [command, "--profile", f"{at}/profile.yaml", "--examples", f"{at}/examples"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
