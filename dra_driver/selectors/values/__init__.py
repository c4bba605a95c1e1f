"""The values of CEL and their types: equality, arithmetic and construction."""
