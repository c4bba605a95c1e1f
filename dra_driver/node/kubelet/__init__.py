"""The kubelet's side: sockets, registration, and the gRPC services that it calls."""
