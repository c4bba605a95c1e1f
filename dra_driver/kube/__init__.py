"""Access to the Kubernetes API: one request function, and list+watch over HTTP.

In: a kubeconfig, or the pod's ServiceAccount. Out: wire objects (plain dicts), watch events, `ApiError`s. This is the
only room that imports `kubernetes`, and of that only configuration and authentication.
"""
