"""GPUs for virtual machines, as the agent sees them: named by rules, passed on, and checked on their return."""

# The file of `remembered_gpus`, beside the ledger; it exists once a GPU could be passed on.
FILE_NAME = "passthrough.json"
