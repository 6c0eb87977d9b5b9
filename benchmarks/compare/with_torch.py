"""PyTorch's own operators, one by one: no interpreter of kernels, but what users would write instead."""

from __future__ import annotations

import math

import torch

VERSION = f"PyTorch {torch.__version__}"
torch.set_num_threads(1)


def matmul(left, right):
    return left.T @ right


def softmax(x):
    return torch.softmax(x, 1)


def attention(q, k, v):
    return torch.softmax(q @ k.T / math.sqrt(q.shape[1]), 1) @ v


PROBLEMS = {function.__name__: function for function in (matmul, softmax, attention)}


def prepared(name, problem):
    inputs = [torch.from_numpy(x) for x in problem.inputs]
    return lambda: PROBLEMS[name](*inputs).numpy()
