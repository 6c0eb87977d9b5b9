"""nki.standins: imported for its effect, which is `nki_legacy.stubs.install()`."""

from ..stubs import install

install()
