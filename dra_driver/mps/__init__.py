"""The MPS supervisor: a small process of its own that keeps one MPS control daemon for each shared device.

Enters: commands over a unix socket (start, stop, list, status). Leaves: control daemons with folders of their own,
which outlive this process: a restarted supervisor finds them again, and the agent is never their parent. Light on
purpose: neither gRPC nor click, pydantic or the hardware's library is loaded here.

    main → server → keeper → daemon → control, launch, processes, folder
"""
