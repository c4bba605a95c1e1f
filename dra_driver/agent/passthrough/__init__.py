"""GPUs that virtual machines may have, as the agent sees them: named, away, and checked when they come back."""

FILE_NAME = "passthrough.json"  # of `kept_gpus`, beside the ledger: it is there once a GPU could be passed on
