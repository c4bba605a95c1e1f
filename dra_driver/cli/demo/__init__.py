"""`dra-driver demo`: run the driver from end to end on this machine, and report the result."""
