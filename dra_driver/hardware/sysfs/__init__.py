"""What vendors have in common that are read from files of sysfs alone: sensors, health, the meter, memory limits.

In: roots, and a vendor's reader of one GPU. Out: reports of the abilities `HealthReporter` and `Metered`.
"""
