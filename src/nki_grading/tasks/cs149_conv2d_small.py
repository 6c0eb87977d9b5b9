"""CS149's convolution at its small sizes: is it right?"""

from ._conv2d import SMALL, task

TASK = task("cs149_conv2d_small", SMALL)
