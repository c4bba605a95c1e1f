"""Controller: this node's devices as ResourceSlices in the API server.

Enters: devices. Leaves: as few writes as bring the API server's slices to what this node offers. `layout`, `diff`,
`compare` and `validity` are pure; `publisher` runs them. Touches only slices of its own driver on its own node.
"""
