"""gRPC on unix sockets: a server in which one thread reads a call, works on it and answers it, and a client.

`huffman` and `header_fields` read HPACK, `frames` reads and writes the frames of HTTP/2, `connection` has the streams
of one client, `stream` is one of them, and `writer` sends their answers; `call` is what a method knows of a call,
`answering` calls methods, and `server` has the sockets and the threads. `client` makes one call of another server, and
`response` reads its answer.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK); gRPC over HTTP2 (grpc/grpc, doc/PROTOCOL-HTTP2.md).
"""
