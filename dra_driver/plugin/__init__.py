"""The kubelet plugin: the kubelet's calls come in, and prepared devices go out.

`kubelet` has the sockets, `prepare` the two calls, `ledger` the record of which claim holds which device, `effects` the
changes on the node, and `repair` removes what no claim owns any more. Importing this package imports none of them, so
the ledger can be read without loading gRPC.
"""
