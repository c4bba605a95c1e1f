"""From the hardware to the inventory: when it is read, what the facts are completed with, and what is current."""
