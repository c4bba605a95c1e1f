"""The supervisor of MPS daemons: what it knows of each daemon, how it notices that one ended, and what it does then."""
