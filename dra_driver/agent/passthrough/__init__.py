"""GPUs for virtual machines, as the agent sees them: named by rules, passed through, and checked on their return."""

# The file of `remembered_gpus`, beside the ledger; it exists as soon as a GPU could be passed through.
FILE_NAME = "passthrough.json"
