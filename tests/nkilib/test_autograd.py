"""The differentiable functions of PyTorch against PyTorch's own."""

import pytest

import nki.language as nl

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import nki  # noqa: E402
from nkilib import autograd  # noqa: E402
from nkilib.core.cumsum import cumsum  # noqa: E402


def gradients(function, *tensors):
    """Return the result, and the gradients of a weighted sum of it."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    result = function(*leaves)
    weight = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    return result, torch.autograd.grad((result * weight).sum(), leaves)


def same(ours, theirs, tolerance):
    for found, wanted in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("of", [0, 1])
def test_cross_entropy_has_the_gradients_of_the_loss_and_of_the_logarithm(of):
    torch.manual_seed(0)
    logits, targets = torch.randn(40, 300), torch.randint(0, 300, (40,), dtype=torch.int32)
    theirs = (lambda x: F.cross_entropy(x, targets.long(), reduction="none"), lambda x: x.logsumexp(1))[of]
    ours = gradients(
        lambda x: autograd.cross_entropy_forward(x, targets, chunk_size=300, dtype=nl.float32)[of], logits
    )
    same(ours, gradients(theirs, logits), 1e-4)


def test_an_unrolled_convolution_has_the_gradients_of_the_convolution():
    torch.manual_seed(0)
    x, filters = torch.randn(1, 2, 3, 4, 5), torch.randn(2, 3, 3, 2, 3)
    options = {"stride": (1, 2, 1), "padding": (1, 0, 1, 1, 0, 2)}
    ours = gradients(lambda a, b: autograd.conv3d_temporal_unroll(a, b, None, **options), x, filters)

    def theirs(a, b):
        return F.conv3d(F.pad(a, (0, 2, 1, 1, 1, 0)), b.permute(4, 3, 0, 1, 2), stride=(1, 2, 1))

    same(ours, gradients(theirs, x, filters), 1e-4)


def test_the_error_of_a_kernel_without_backward_names_the_fallback():
    y = cumsum(torch.ones(4, 8, requires_grad=True))
    with pytest.raises(nki.NkiError, match="nkilib's cumsum has no kernel for its gradients") as raised:
        y.sum().backward()
    assert raised.value.kind == "no-backward" and "gradient_of(reference)" in str(raised.value)


def test_the_error_of_a_kernel_with_a_differentiable_function_names_it():
    from nkilib.experimental.misc import gather

    with pytest.raises(nki.NkiError, match=r"nkilib\.autograd\.gather is differentiable"):
        gather(
            torch.ones(4, 2, requires_grad=True), 0, torch.tensor([1, 2], dtype=torch.int32)
        ).sum().backward()
