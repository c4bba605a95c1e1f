"""Types, names and costs of an expression, before it is evaluated."""
