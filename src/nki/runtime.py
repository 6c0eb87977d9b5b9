"""nki.runtime: Open NKI has no device. Importing works; a name of it raises, as where no device is found."""

from .compiler import absent

__getattr__ = absent("nki.runtime", "runs binaries on a device")
