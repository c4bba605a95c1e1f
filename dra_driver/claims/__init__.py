"""ResourceClaims in, prepare plans out; pure.

`allocated` reads what the scheduler allocated to this driver, `config` reads opaque configs strictly, `sharing_plan`
decides how they share devices, and `plan` lists the steps that make the claim's devices usable and how each is undone.
No I/O, no clock, no hardware: an admission webhook can use the same code as the plugin.
"""
