"""Opaque configs in, `DeviceConfig`s or faults out: `reading` reads them strictly, by the module of their API group.

`node_settings` reads the sharing section of the agent's own file by the same rules. pydantic, which `schema` imports,
is loaded only when there is a config to read.
"""
