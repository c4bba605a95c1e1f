"""What it is to carry out a step of a plan: the contract of a performer, and the run of one claim's steps."""
