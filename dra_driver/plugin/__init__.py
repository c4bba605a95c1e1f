"""The kubelet's calls in, prepared devices out.

`server` and `registration` own the sockets, `prepare` the two calls, `ledger` what this node has promised, `sharer`
what claims share, `reaper` what nobody owns any more. Importing this package is free: an idle node asks the ledger
without paying for gRPC.
"""
