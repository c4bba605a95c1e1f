"""`dra-driver doctor`: what is wrong with this cluster or node, and what to do about it."""
