"""Read files that people write strictly, and report all faults at once, each with its path and line.

In: a YAML file. Out: plain values, and what is wrong with them. Never: knowledge of what the files are about. On the
agent's side this is the only room that imports yaml, and only when such a file was named.
"""
