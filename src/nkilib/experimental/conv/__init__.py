"""Convolutions."""

from nkilib.experimental.conv.conv1d import conv1d, conv1d_ref
from nkilib.experimental.conv.conv3d import conv3d, conv3d_ref

__all__ = ["conv1d", "conv1d_ref", "conv3d", "conv3d_ref"]
