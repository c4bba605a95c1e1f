"""The functions that Kubernetes adds to CEL, and those of CEL itself."""
