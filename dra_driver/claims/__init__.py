"""ResourceClaims in, prepare plans out; pure.

`allocated` reads what the scheduler allocated to us, `config` reads opaque configs strictly, `sharing` says how devices
are shared by them, `plan` which steps make the claim's devices usable and how each is undone. No I/O, no clock, no
hardware: an admission webhook can use the same code as the plugin.
"""
