"""The node daemon: connects hardware → controller and claim → plugin, and shuts down cleanly.

In: flags. Out: slices in the API server, a registered plugin, metrics. `main.py` reads the flags, `node_process.py`
runs one `driver_lifecycle.py` for each driver; `node.py` is the life of one driver's agent, and `wiring.py` connects
its parts; `inventory/` reads the hardware; `status/` answers probes and Prometheus. Importing this package is cheap:
an idle node loads neither gRPC nor the API client.
"""

from dra_driver.node.daemon.main import main

__all__ = ["main"]
