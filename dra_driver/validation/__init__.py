"""Validation: whether a device that no claim holds computes what it should.

In: a device, and its possible holders. Out: a result with one of three verdicts. The test runs in a short-lived process
of its own (`launch`), because an open context would keep the driver from a reset, from a change of MIG mode and from
being unloaded, and because a GPU that hangs must not hang the agent. One test runs at a time on a node
(`validation_lock`), and a claim that arrives ends it.

    validator → validation_lock, child → launch → hardware.compute
        └────→ child_result → result
"""
