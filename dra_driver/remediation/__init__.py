"""Remediation: GPUs that need a reset or a reboot are drained, mended, proven well, and offered again.

    fault ──► treatment ──► case ──► step by step, each on disk before the next ──► returned | escalated

`policy` says which action each fault gets, `treatment` chooses it, `budgets` says whether it may be tried. `case` is
what is known of one GPU's remediation; `journal` keeps it on disk. `steps` does the next thing for one case,
`remediation` is the thread that decides whose turn it is. Nothing here is imported while the option is off.
"""
