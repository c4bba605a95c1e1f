"""How MIG partitions are offered: placements, the counters that they share with their GPU, and declared geometries."""
