"""The embedded API server: HTTP requests in, stored objects and watch events out.

`server` puts it together, `httpd` owns the sockets, `store` the objects and `dispatch` the paths.
"""
