"""YAML that people wrote, edited in place: what is not changed stays byte for byte, comments included.

In: text and the parts to change. Out: text. Knows nothing of Kubernetes.
"""
