"""What a step does on the node: partitions, sharing, passthrough, limits, files."""
