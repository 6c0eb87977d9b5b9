"""`torch_xla.utils`: checkpoints of activations and of tensors are torch's own."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

save, load = torch.save, torch.load
__all__ = ["checkpoint", "load", "save"]
