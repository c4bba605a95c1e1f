"""The code that vendors read from sysfs alone share: sensors, health, the meter, memory limits.

In: roots, and a vendor's reader of one GPU. Out: reports of the abilities `HealthReporter` and `Metered`.
"""
