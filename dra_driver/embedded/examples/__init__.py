"""Examples: YAML files of Kubernetes objects in, a report of what became of every claim and pod out.

`expectations` compares the report with what a file promises.
"""
