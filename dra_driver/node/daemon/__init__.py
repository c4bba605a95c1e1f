"""The node daemon: connects hardware → slices and claim → kubelet, and shuts down cleanly.

In: flags. Out: slices in the API server, a registered plugin, metrics. `main.py` reads the flags, and `node_process.py`
runs an agent for each driver; `node.py` is the life of one agent, `wiring.py` connects its parts, and `status_page.py`
answers probes and Prometheus. Importing this package is cheap: an idle node loads neither gRPC nor the API client.
"""

from dra_driver.node.daemon.main import main

__all__ = ["main"]
