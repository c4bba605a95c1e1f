"""Store: the files in which the agent keeps what it must still know after a restart.

In: jobs in SQL. Out: durable transactions. `ledger.db` has the claims (`plugin/ledger`), `state.db` the rest: health,
remediation, GPUs for virtual machines, cordons. Both are opened, checked and set aside here, by one policy.
"""
