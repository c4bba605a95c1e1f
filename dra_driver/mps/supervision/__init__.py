"""The supervisor of MPS daemons: its record of each daemon, how it detects the end of one, and what it does then."""
