"""rpc: a gRPC server on unix sockets in which a call is read, worked on and answered by one thread.

`huffman` and `header_fields` read HPACK, `frames` are HTTP/2's, `connection` keeps the streams of one client, `call` is
what a method gets and returns, and `server` has the sockets and the threads.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK); gRPC over HTTP2 (grpc/grpc, doc/PROTOCOL-HTTP2.md).
"""
