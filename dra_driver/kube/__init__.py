"""Access to the Kubernetes API: one request function, and list+watch over HTTP.

Enters: a kubeconfig, or the pod's ServiceAccount. Leaves: wire objects (plain dicts), watch events, `ApiError`s. The
only room that imports `kubernetes`, and of that only the loader for kubeconfig users with `exec` or `auth-provider`.
"""
