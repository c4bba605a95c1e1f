"""What is measured of Intel's GPUs from sysfs, and the names under which it is published."""
