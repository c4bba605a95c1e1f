"""The rows of the tables of attributes and capacities, and how values are read that several vendors publish."""
