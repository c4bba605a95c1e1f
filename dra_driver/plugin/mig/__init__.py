"""MIG partitions on this node: made and destroyed for claims, cut as declared, and who owns which."""
