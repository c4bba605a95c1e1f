"""How the webhook and the console are served: uvicorn's server, and connections that are bounded in number and time.

In: an ASGI application, a listening socket, limits. Out: a server that any thread may ask to end.
"""
