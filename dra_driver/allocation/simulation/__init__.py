"""The simulation of a cluster over time: events come in; placements and waiting jobs go out."""
