"""The contract of a performer, which carries out and undoes steps of a plan, and the run of one claim's steps."""
