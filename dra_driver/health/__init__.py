"""Health: evidence about GPUs in, faults and what follows from them out.

    evidence ──► record ──► faults ──► policy ──► taints, pod health, Events, metrics

`record` remembers what was observed; `faults` derives what is wrong from it; `policy` decides what each fault means for
the scheduler; `spreading` maps faults to the devices that are published. All four are pure. `store` keeps the record on
disk, `cordons` what an administrator took out by hand, and `monitor` is the thread that ties them together.
"""
