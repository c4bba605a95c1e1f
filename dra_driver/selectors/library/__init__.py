"""The functions of the dialect: CEL's standard ones, strings, lists and sets, and those that Kubernetes adds."""
