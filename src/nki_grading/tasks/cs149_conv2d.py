"""CS149's convolution at all its sizes, with its limits of time."""

from ._conv2d import LARGE, SMALL, task

TASK = task("cs149_conv2d", [*SMALL, *LARGE])
