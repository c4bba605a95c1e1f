"""From the hardware to the inventory: when the hardware is read, what completes its facts, and the newest inventory."""
