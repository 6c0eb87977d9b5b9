"""The hardware as data: machines, memories, engines, dtypes, operators, activation functions."""
