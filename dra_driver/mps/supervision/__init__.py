"""The supervisor of MPS daemons: what is known of each, when one ends, and what is done then."""
