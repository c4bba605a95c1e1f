"""The kubelet's calls come in; prepared devices go out.

`kubelet` owns the sockets, `prepare` the two calls, `ledger` the record of what this node has promised, `effects` the
changes on the node, and `repair` the removal of what no claim owns any more. Importing this package costs nothing:
an idle node can read the ledger without loading gRPC.
"""
