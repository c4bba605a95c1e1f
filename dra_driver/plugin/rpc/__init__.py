"""rpc: gRPC on unix sockets: a server in which one thread reads a call, works on it and answers it; and a client.

`huffman` and `header_fields` read HPACK, `frames` are HTTP/2's, `connection` keeps the streams of one client, `call` is
what a method gets and returns, and `server` has the sockets and the threads. `client` makes one call of another server,
and `answer` reads what comes back.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK); gRPC over HTTP2 (grpc/grpc, doc/PROTOCOL-HTTP2.md).
"""
