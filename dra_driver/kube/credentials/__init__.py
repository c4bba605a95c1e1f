"""Credentials for an API server: address, authority, and a token or certificate, each read again when it changes.

`loading` finds them, in a kubeconfig or in the pod's ServiceAccount; `official` asks the official client, and only for
users that need a program or a plugin to sign in.
"""
