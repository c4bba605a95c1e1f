"""`dra-driver demo`: the driver from end to end, without a GPU and without a cluster."""
