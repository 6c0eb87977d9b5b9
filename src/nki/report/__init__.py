"""What a person reads: the table, the page, the Perfetto trace, the figures as JSON. Pure functions."""
