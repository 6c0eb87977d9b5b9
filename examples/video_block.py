"""A 3-D convolution network for videos trains on library kernels, as it does in plain PyTorch.

python examples/video_block.py [--steps 10]      trains both from the same weights and compares
python examples/video_block.py --profile         models the kernels of a step at 16 frames of 112 x 112

Convolutions, batch norms with ReLU, poolings and the loss are kernels in both directions; PyTorch computes
the small product of the classifier.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import nki.language as nl
from modelled import Calls
from nkilib import autograd
from nkilib.experimental.batch_norm import batch_norm, batch_norm_bwd
from nkilib.experimental.conv.conv3d import conv3d
from nkilib.experimental.conv.conv3d_bwd import conv3d_bwd
from nkilib.experimental.pooling import (
    avg_pooling_3d,
    avg_pooling_3d_backward,
    max_pooling_3d,
    max_pooling_3d_backward,
)

PADDED = (1,) * 6


class Network(nn.Module):
    """Two convolutions with batch norm, and a classifier."""

    def __init__(self, channels=(3, 8, 16), classes=10, frames=4, size=8):
        super().__init__()
        self.frames, self.size = frames, size
        pairs = list(zip(channels, channels[1:], strict=False))
        self.filters = nn.ParameterList(
            nn.Parameter(torch.randn(3, 3, 3, *pair) / (27 * pair[0]) ** 0.5) for pair in pairs
        )
        self.gamma = nn.ParameterList(nn.Parameter(torch.ones(outputs)) for _, outputs in pairs)
        self.beta = nn.ParameterList(nn.Parameter(torch.zeros(outputs)) for _, outputs in pairs)
        self.classifier = nn.Linear(channels[-1], classes)

    def forward(self, x):
        """Return the logits of videos x [B, 3, frames, size, size]."""
        for filters, gamma, beta, pool in zip(
            self.filters, self.gamma, self.beta, (self.halved, self.averaged), strict=True
        ):
            x = pool(self.normalised(self.convolved(x, filters), gamma, beta))
        return self.classifier(x.flatten(1))

    def averages(self, x):
        return tuple(x.shape[2:])


class KernelNetwork(Network):
    """The same on kernels."""

    def convolved(self, x, filters):
        return autograd.conv3d(x, filters, None, padding=PADDED)

    def normalised(self, x, gamma, beta):
        return autograd.batch_norm(x, gamma, beta, fuse_relu=True)[0]

    def halved(self, x):
        return autograd.max_pooling_3d(x, 2)

    def averaged(self, x):
        return autograd.avg_pooling_3d(x, self.averages(x))

    def loss(self, x, targets):
        logits = self(x)
        options = {"positions_per_batch": len(x), "chunk_size": logits.shape[1], "dtype": nl.float32}
        return autograd.cross_entropy_forward(logits, targets.int(), **options)[0].mean()


class TorchNetwork(Network):
    """The same in plain PyTorch."""

    def convolved(self, x, filters):
        return F.conv3d(x, filters.permute(4, 3, 0, 1, 2), padding=1)

    def normalised(self, x, gamma, beta):
        return F.relu(F.batch_norm(x, None, None, gamma, beta, training=True))

    def halved(self, x):
        return F.max_pool3d(x, 2)

    def averaged(self, x):
        return F.avg_pool3d(x, self.averages(x))

    def loss(self, x, targets):
        return F.cross_entropy(self(x), targets)


def train(network, x, targets, steps):
    """Return the losses of all steps."""
    optimizer, losses = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = network.loss(x, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(steps, batch=4):
    """Return the losses on kernels in float32, and in PyTorch in float64."""
    torch.manual_seed(0)
    ours, theirs = KernelNetwork(), TorchNetwork().double()
    theirs.load_state_dict(ours.state_dict())
    x, targets = torch.randn(batch, 3, ours.frames, ours.size, ours.size), torch.arange(batch) % 10
    return train(ours, x, targets, steps), train(theirs, x.double(), targets, steps)


def profile(frames=16, size=112, channels=(3, 64, 128)):
    """Print the modelled times of the forward and backward kernels for one video in bfloat16."""
    run = Calls()

    def meta(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    x = meta(1, channels[0], frames, size, size)
    for inputs, outputs, forward, backward in (
        (*channels[:2], max_pooling_3d, max_pooling_3d_backward),
        (*channels[1:], avg_pooling_3d, avg_pooling_3d_backward),
    ):
        filters, vector = meta(3, 3, 3, inputs, outputs), meta(outputs, dtype=torch.float32)
        y = run(conv3d, x, filters, None, (1, 1, 1), PADDED, lnc_shard=True)
        run(conv3d_bwd, y, x, filters, (1, 1, 1), PADDED, compute_db=False)
        run(batch_norm, y, vector, vector, fuse_relu=True)
        run(batch_norm_bwd, y, y, *[vector] * 4, fuse_relu=True)
        window = 2 if forward is max_pooling_3d else (frames // 2, 1, 1)
        x = run(forward, y, window)
        run(backward, x, y, *([x] if forward is max_pooling_3d else []), window)
    print(run.table(f"a step for {frames} frames of {size} x {size}, {channels} channels"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="the kernels of a step on the timing model")
    options = parser.parse_args()
    if options.profile:
        profile()
        return
    ours, theirs = compare(options.steps)
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f} in {options.steps} steps on kernels in float32")
    print(f"loss {theirs[0]:.4f} -> {theirs[-1]:.4f} in PyTorch in float64")
    print(f"losses at most {apart:.1e} apart")


if __name__ == "__main__":
    main()
