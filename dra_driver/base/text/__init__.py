"""Documents that people write: read with the place of each value, and edited as text."""
