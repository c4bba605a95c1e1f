"""`dra-driver demo`: run the whole way on this machine and report it."""
