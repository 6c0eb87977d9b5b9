"""nki.framework: the package where public code imports the Kernel class from."""

__path__: list[str] = []  # a package, whose submodules are entry points too
