"""The kubelet's side of the plugin: sockets, registration, and the border where gRPC messages become claims."""
