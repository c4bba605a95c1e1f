"""`dra-driver usage` on a large cluster: a made-up API server, and what one run of the command takes."""
