"""Controller: this node's devices as ResourceSlices in the API server.

In: devices. Out: as few writes as bring the API server's slices to what this node offers. `layout`, `diff`, `compare`
and `validity` are pure; `publisher` runs them. Never: a change to a slice of another driver or another node.
"""
