"""From text to a tree, with the errors that Kubernetes prints."""
