"""The MPS supervisor: a small separate process that keeps one MPS control daemon for each shared device.

In: commands over a unix socket (start, stop, list, status). Out: control daemons, each with its own folder, which
outlive this process: a restarted supervisor finds them again, and the agent is never their parent. The process is light
on purpose: it loads neither gRPC nor click, pydantic or the hardware's library.

    main → server → supervisor → daemon → control, launch, processes, folder
"""
