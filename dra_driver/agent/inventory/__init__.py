"""From the hardware to the inventory: when it is read, what completes its facts, and which inventory is current."""
