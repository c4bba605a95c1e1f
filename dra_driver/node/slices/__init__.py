"""ResourceSlices: from the devices of the node to what stands in the API server."""
