"""What is measured of AMD's GPUs from sysfs, and the names under which it is published."""
