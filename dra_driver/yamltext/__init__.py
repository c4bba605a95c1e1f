"""Edit YAML that people wrote: whatever does not change stays byte for byte, including the comments.

In: text and the parts to change. Out: text. Never: knowledge of Kubernetes.
"""
