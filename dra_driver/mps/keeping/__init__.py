"""The keeper of MPS daemons: what is known of each, when one ends, and what is done then."""
