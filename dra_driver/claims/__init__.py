"""ResourceClaims in, prepare plans out; pure.

`config` reads opaque configs strictly, `allocated` reads what the scheduler allocated to this driver, `reports` holds
what others can read about the devices, `steps` plans each kind of step, and `plan` lists the steps of a claim in order.
No I/O, no clock, no hardware: an admission webhook can use the same code as the plugin.
"""
