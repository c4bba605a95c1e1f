"""The supervisor of MPS control daemons, in a process of its own."""
