"""Found by the Python processes that a script of `nki run` starts: they get the stubs too."""

from nki_legacy.stubs import install

install()
