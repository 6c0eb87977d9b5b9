"""Names of older releases."""
