"""From a checked tree to a program that judges devices, and to the values and costs behind a verdict."""
