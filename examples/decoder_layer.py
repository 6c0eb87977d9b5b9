"""What decoder layers of several models share on kernels: the projections at both ends, and the MLP."""

import torch

from nkilib.core.mlp.mlp import mlp
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.qkv.qkv_cte import qkv_cte
from nkilib.core.qkv.qkv_tkg import qkv_tkg
from nkilib.core.utils.common_types import NormType
from nkilib.experimental.foreach.foreach_elementwise import add_tensor_kernel


def joined(*linears):
    """Return the weights of several projections as one matrix [inputs, outputs]."""
    return torch.cat([linear.weight for linear in linears]).T.contiguous()


class Layer:
    """A layer with RMSNorm and a gated MLP; `run` calls kernels. One token is decode, more are prefill."""

    def __init__(self, layer, run, gamma, gamma_mlp, eps=1e-6):
        self.run, self.eps, inner = run, eps, layer.mlp
        self.mlp = [joined(linear) for linear in (inner.gate_proj, inner.up_proj, inner.down_proj)]
        self.gamma, self.gamma_mlp = gamma, gamma_mlp  # [1, H]

    def project(self, x, weight, **options):
        """Return the norm of x [B, S, H] times a weight [H, N]."""
        if x.shape[1] == 1:
            return self.run(qkv_tkg, x, weight, self.gamma, eps=self.eps, **options).to(x.dtype)
        norm = {"fused_norm_type": NormType.RMS_NORM, "gamma_norm_weights": self.gamma, "norm_eps": self.eps}
        return self.run(qkv_cte, x, weight, **norm, **options).to(x.dtype)

    def finish(self, x, heads, weight):
        """Return x + heads [B, S, N, d] times a weight [N d, H], plus the MLP of that sum."""
        if x.shape[1] == 1:
            by_depth = heads.permute(3, 0, 2, 1).contiguous()
            update = self.run(output_projection_tkg, by_depth, weight).reshape(x.shape)
        else:
            update = self.run(output_projection_cte, heads.permute(0, 2, 3, 1).contiguous(), weight)
        norm = {"normalization_type": NormType.RMS_NORM, "normalization_weights_tensor": self.gamma_mlp}
        sums = {"fused_add_tensor": update, "store_fused_add_result": True}
        added, x = self.run(mlp, x, *self.mlp, eps=self.eps, **sums, **norm)
        one = torch.ones(128, 1, device=x.device)
        return self.run(add_tensor_kernel, x, added, one, x.numel()).reshape(x.shape)
