"""The kubelet's side of the plugin: sockets, registration, and the place where gRPC messages become claims."""
