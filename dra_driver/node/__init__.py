"""The agent of one node: it publishes the devices of the node and prepares claims for the kubelet."""
