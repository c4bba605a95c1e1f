"""Controller: this node's devices as ResourceSlices in the API server.

In: devices. Out: the fewest writes that make the API server's slices what this node offers. `layout`, `diff`, `compare`
and `validity` are pure; `publisher` runs them. Never: a change to a slice of another driver or another node.
"""
