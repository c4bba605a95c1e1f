"""Values of CEL: their types, equality, arithmetic."""
