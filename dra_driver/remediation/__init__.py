"""Remediation: GPUs that need a reset or a reboot are drained, reset or rebooted, tested, and offered again.

    fault ──► action choice ──► case ──► step by step, each on disk before the next ──► returned | escalated

`policy` defines which action each fault gets, `action_choice` chooses the action for a GPU, and `budgets` decides
whether it may be tried. `case` is the state of one GPU's remediation; `journal` keeps it on disk. `steps` takes the
next step of one case, and `remediation` is the thread that decides which case is next. Nothing here is imported while
the option is off.
"""
