"""Stand-ins for a cluster on one machine: a Kubernetes API over HTTP, a kubelet and a scheduler step.

In: nothing but this process's memory and the folders it is given. Out: real HTTP and real gRPC over unix sockets, so
that the agent under test can't tell the difference. The demo and the tests use them; tests on a real cluster check that
they behave like one.
"""
