"""Files that people write, read strictly: every fault at once, each with its path and line.

Enters: a YAML file. Leaves: plain values, and what is wrong with them. Knows nothing of what the files are about. The
only room that imports yaml on the agent's side, and only where such a file was named.
"""
