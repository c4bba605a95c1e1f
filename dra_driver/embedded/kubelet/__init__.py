"""The embedded kubelet: it finds plugins by their sockets and calls them for the claims of a pod.

`container_view` shows what the containers would see.
"""
