"""What vendors have in common that are read from files of sysfs alone: sensors, the watch of health, the meter.

In: roots, and a vendor's reader of one GPU. Out: reports of the abilities `HealthReporter` and `Metered`.
"""
