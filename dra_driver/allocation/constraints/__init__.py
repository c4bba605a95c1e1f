"""Constraints between the devices of a claim: they must agree, or differ, in one attribute. `make` makes each kind."""
