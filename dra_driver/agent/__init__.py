"""The node daemon: connects hardware → controller and claim → plugin, and shuts down cleanly.

In: flags. Out: slices in the API server, a registered plugin, metrics. `main.py` reads flags and decides whether this
node needs the agent at all; `node.py` is the daemon's life, and `wiring.py` connects the rooms; `inventory/` reads the
hardware; `status/` answers probes and Prometheus. Importing this package is cheap: an idle node loads neither gRPC nor
the API client.
"""

from dra_driver.model.lean import lean_imports

with lean_imports():
    from dra_driver.agent.main import main

__all__ = ["main"]
