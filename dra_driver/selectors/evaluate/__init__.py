"""Evaluation of a checked expression, with the costs that Kubernetes counts."""
