"""From a syntax tree to its types, compile errors and cost estimate, with Kubernetes' texts."""
