"""Convolutions."""

from nkilib.experimental.conv.conv1d import conv1d, conv1d_ref
from nkilib.experimental.conv.conv3d import conv3d, conv3d_ref
from nkilib.experimental.conv.depthwise_conv1d import (
    depthwise_conv1d_implicit_gemm,
    depthwise_conv1d_implicit_gemm_ref,
)

__all__ = [
    "conv1d",
    "conv1d_ref",
    "conv3d",
    "conv3d_ref",
    "depthwise_conv1d_implicit_gemm",
    "depthwise_conv1d_implicit_gemm_ref",
]
