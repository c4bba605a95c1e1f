"""Faults: noticed, remembered, told as taints, tested, and mended."""
