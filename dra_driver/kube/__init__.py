"""Kube: one request function and list+watch over HTTP.

Enters: a kubeconfig, or the pod's ServiceAccount. Leaves: wire objects (plain dicts), watch events, `ApiError`s. The
only room that imports `kubernetes`, and of that only configuration and authentication.
"""
