"""The version: of this package, and of the NKI it follows."""

PACKAGE = "0.2.0"
NKI = "0.6.0"
__version__ = f"{NKI}+open.{PACKAGE}"
