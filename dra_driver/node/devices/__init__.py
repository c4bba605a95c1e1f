"""Devices as they are published: from a vendor's facts to names, attributes, counters, shares and partitions."""
