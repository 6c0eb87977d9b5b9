"""The same kernels and the same mistakes here and in other kernel languages that run without their device.

`make compare` makes an environment of its own in build/compare, runs this, and writes docs/comparison.md.
A system is a module `with_SYSTEM` with `VERSION`, `prepared` (a kernel to time) and `PROBES`:
programs by the question that they ask (page.py has the questions). A mistake ends in an error, in a warning,
or it returns and its answer is shown. What has no probe is not claimed.
"""
