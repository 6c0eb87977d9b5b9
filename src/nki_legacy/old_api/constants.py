"""`neuronxcc.nki.isa.constants`: the enumerations once more."""

from nki.isa.enums import dge_mode, engine, nc_version, oob_mode, reduce_cmd

__all__ = ["dge_mode", "engine", "nc_version", "oob_mode", "reduce_cmd"]
