"""Keys, certificates, tokens and kubeconfigs of one cluster, made when needed with the openssl command.

In: a folder, the cluster's addresses. Out: files. No key outlives the cluster.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path

CLUSTER_IP = "10.96.0.1"


class Authority:
    """The cluster's own certificate authority and token file, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: dict[str, str] = {}
        folder.mkdir(parents=True, mode=0o700)
        self._openssl(
            *("req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=cluster-lane-ca"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", "ca.key", "-out", "ca.crt"),
        )
        # ServiceAccount tokens are signed with the private and checked with the public half.
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
        self._openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    def issue(self, name: str, subject: str, addresses: str = "") -> None:
        """Write `<name>.key` and `<name>.crt`, for serving and as a client; addresses as `IP:…,DNS:…`."""
        alternative = f"subjectAltName={addresses}\n" if addresses else ""
        (self.folder / f"{name}.ext").write_text(f"extendedKeyUsage=serverAuth,clientAuth\n{alternative}")
        self._openssl(
            *("req", "-nodes", "-subj", subject, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        self._openssl(
            *("x509", "-req", "-days", "30", "-in", f"{name}.csr", "-extfile", f"{name}.ext"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.crt"),
        )

    def token(self, user: str, *groups: str) -> str:
        """Add a static token for a user; the API server reads the file only once, when it starts."""
        token = secrets.token_hex(16)
        self.tokens[user] = token
        with (self.folder / "tokens.csv").open("a") as file:
            file.write(f'{token},{user},{user},"{",".join(groups)}"\n')
        return token

    def kubeconfig(self, name: str, token: str, server: str) -> Path:
        """Write `<name>.kubeconfig` (JSON is YAML too) and return its path."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "cluster",
                    "cluster": {"server": server, "certificate-authority": str(self.folder / "ca.crt")},
                }
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
            "current-context": "cluster",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))
        return path

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise subprocess.SubprocessError(f"openssl {' '.join(arguments)}: {done.stderr}")
