"""This driver beside a Go plugin on Kubernetes' own helper, in one run: `python -m benchmarks.side_by_side`.

One real API server (TLS, loopback) and one client that plays the kubelet over unix sockets serve all drivers; their
rounds alternate, so that a slow minute of the machine affects all of them. The Go plugin (cluster/floor) does the least
that a driver on Kubernetes' helper has to do for a claim.
"""
