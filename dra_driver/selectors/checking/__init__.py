"""A syntax tree in; its types, compile errors and cost estimate out, in Kubernetes' words."""
