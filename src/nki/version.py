"""The version: of the NKI this follows, and of this package."""

__version__ = "0.6.0+open.0.1.0"
