"""What GPUs were used for and what that costs.

In: what the agents have counted, from a Prometheus or from the agents themselves; a person's price table. Out: a report
of device-hours and money by claim, pod, namespace, class, node or pool, with advice. Nothing is drawn here.
"""
