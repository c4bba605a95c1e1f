"""The board: what the console shows of a fleet: its objects as they are now, the map drawn from them, and answers."""
