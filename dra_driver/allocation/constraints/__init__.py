"""Constraints between the devices of a claim: agree, or differ, in one attribute. `make` knows all kinds."""
