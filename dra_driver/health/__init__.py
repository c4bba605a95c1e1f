"""Health: evidence about GPUs comes in; faults, and what follows from them, go out.

    evidence ──► record ──► faults ──► policy ──► taints, pod health, Events, metrics

`record` remembers what was observed and derives the faults from it. `policy` decides what each fault means for the
scheduler, and `affected_devices` maps faults to the devices that are published. All three are pure. `store` keeps the
record on disk, `cordons` keeps the devices that an administrator took out of use, and `monitor` is the thread that
connects them.
"""
