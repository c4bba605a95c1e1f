"""Opaque configs in, `DeviceConfig`s or faults out: `reading` reads any of them strictly, by `schema` or `amd_config`.

`node_settings` reads the sharing section of the agent's own file by the same rules. pydantic, which `schema` imports,
is loaded only when there is a config to read.
"""
