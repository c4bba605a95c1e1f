"""`dra-driver usage`: what GPUs were used for, what that cost, and what could be saved."""
