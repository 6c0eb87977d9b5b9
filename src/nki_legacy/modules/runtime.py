"""nki.runtime: Open NKI has no device. Importing works; every name raises, as where no device is found."""

from .compiler import absent

__getattr__ = absent("nki.runtime", "runs binaries on a device")
