"""What a node offers and what is held of it: devices in pools, their capacity and counters, nodes that they fit."""
