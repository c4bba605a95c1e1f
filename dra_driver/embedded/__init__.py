"""Stand-ins for a cluster on one machine: a Kubernetes API over HTTP, a kubelet and a scheduler step.

In: nothing but this process's memory and the folders it is given. Out: real HTTP and real gRPC over unix sockets, so
that the agent under it can't tell the difference. They serve the demo and the tests; a real cluster keeps them honest.
"""
