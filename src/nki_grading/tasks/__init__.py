"""Tasks that come with Open NKI; each module has a TASK."""
