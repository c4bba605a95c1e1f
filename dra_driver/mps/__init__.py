"""The MPS supervisor: a small separate process that keeps one MPS control daemon for each shared device.

In: commands over a unix socket (start, stop, tidy, status, list). Out: control daemons, each with its own folder, which
outlive this process: a restarted supervisor finds them again, and the agent is never their parent. The process is small
on purpose: it loads none of gRPC, click, pydantic and the hardware's library.

    main → server → supervisor → daemon → control, launch, processes, folder
"""
