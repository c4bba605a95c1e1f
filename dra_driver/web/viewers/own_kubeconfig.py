"""A kubeconfig with a viewer's own token, for commands that are run for this viewer.

In: the address of the API server and a token. Out: the text of the kubeconfig.
"""

from __future__ import annotations

import base64
import json

from dra_driver.kube.credentials.kubeconfig import Credentials
from dra_driver.model.wire import Wire


def kubeconfig_text(server: Credentials, token: str) -> str:
    """Return a kubeconfig, as JSON."""
    cluster: Wire = {"server": server.server}
    if (tls := server.tls) is not None:
        if tls.ca_pem:
            cluster["certificate-authority-data"] = base64.b64encode(tls.ca_pem.encode()).decode()
        elif tls.ca_file:
            cluster["certificate-authority"] = tls.ca_file
        if tls.server_name:
            cluster["tls-server-name"] = tls.server_name
        if tls.is_unverified:
            cluster["insecure-skip-tls-verify"] = True
    name = "viewer"
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )
