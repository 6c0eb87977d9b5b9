"""Tasks that come with Open NKI; each module has `TASKS`."""
