"""Code shared by the vendors whose GPUs are read from sysfs alone: sensors, health, the meter, memory limits.

In: roots, and a vendor's reader of one GPU. Out: reports of the abilities `HealthReporter` and `Metered`.
"""
