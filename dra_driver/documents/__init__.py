"""Read files strictly that people have written, and report all faults at once, each with its path and line.

In: a YAML file. Out: plain values or models, and what is wrong with them. This room does not know what the files are
about. In the agent no other room imports yaml, and this one does so, and imports pydantic, only when such a file is
configured.
"""
