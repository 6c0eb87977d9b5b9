"""Backends: what runs a Program and holds its values. `protocol` is all that a launch asks of one."""
