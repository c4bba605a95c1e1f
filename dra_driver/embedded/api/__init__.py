"""The embedded API server: HTTP requests in, stored objects and watch events out.

`server` puts the parts together; `httpd` owns the sockets, `store` the objects and `dispatch` the paths.
"""
