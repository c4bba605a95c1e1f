"""Access to the Kubernetes API: one request function, and list+watch over HTTP.

In: a kubeconfig, or the pod's ServiceAccount. Out: wire objects (plain dicts), watch events, `ApiError`s. No other room
imports `kubernetes`; this one uses only its loader, for kubeconfig users with `exec` or `auth-provider`.
"""
