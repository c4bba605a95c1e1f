"""What GPUs were used for and what that costs.

In: what the agents have counted, read from a Prometheus or from the agents themselves, and a price table. Out: a report
of device-hours and money by claim, pod, namespace, class, node or pool, with advice.
"""
