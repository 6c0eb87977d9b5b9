"""explain returns what would serve a call, and the call is served so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402
from trnblas.choices import KERNELS  # noqa: E402


def test_explain_gives_the_reason_on_pytorch():
    found = trnblas.explain("gemm", (4, 5), (5, 6))
    assert (found.backend, found.kernel, found.tiles) == ("PyTorch", "", None)
    assert "nki is Open NKI, a simulator" in found.why
    trnblas.set_backend("pytorch")
    assert trnblas.explain("trsm", (4, 4), (4, 6)).why == "the backend is pytorch"


def test_explain_names_kernel_tiles_and_padding_on_nki():
    trnblas.set_backend("nki")
    found = trnblas.explain("gemm", (1000, 700), (700, 900), dtype=torch.bfloat16)
    assert (found.backend, found.kernel, found.tiles) == ("simulator", "gemm_kernel", (512, 512))
    assert found.padding.endswith("the PE array computes 1024 x 768 x 900 for 1000 x 700 x 900")
    text = str(found)
    assert text.startswith("gemm: gemm_kernel on the simulator, blocks of 512 x 512; padding: none in HBM")
    assert text.endswith("the backend is nki")
    assert "n 200 -> 256 in HBM" in trnblas.explain("trsm", (200, 200), (200, 9)).padding


def test_explain_takes_shape_and_dtype_of_tensors():
    trnblas.set_backend("nki")
    A = torch.ones(4, 5, dtype=torch.float64)
    found = trnblas.explain("gemm", A, A, transB=True)
    assert found.backend == "PyTorch" and "precision='fp64' splits it" in found.why
    found = trnblas.explain("gemm", A, A, transB=True, precision="fp64")
    assert found.backend == "simulator" and "36 bfloat16 products" in found.kernel
    assert "no kernel for torch.int64" in trnblas.explain("dot" and "gemm", A.long(), A.long().T).why


def test_level_1_and_empty_operands_are_pytorch_everywhere():
    trnblas.set_backend("nki")
    assert "every backend" in trnblas.explain("dot", (5,), (5,)).why
    assert "empty" in trnblas.explain("gemm", (0, 5), (5, 6)).why


@pytest.mark.parametrize(
    "op, shapes, flags, sizes",
    [
        ("gemm", [(5, 4), (5, 6)], {"transA": True}, "4 x 5 x 6"),
        ("gemv", [(4, 5), (5,)], {}, "4 x 5 x 1"),
        ("gemv", [(4, 5), (4,)], {"trans": True}, "5 x 4 x 1"),
        ("ger", [(4,), (6,)], {}, "4 x 1 x 6"),
        ("symm", [(5, 5), (3, 5)], {"side": "right"}, "3 x 5 x 5"),
        ("syrk", [(4, 7)], {}, "4 x 7 x 4"),
        ("syrk", [(4, 7)], {"trans": True}, "7 x 4 x 7"),
        ("batched_gemm", [(2, 4, 5), (2, 5, 6)], {}, "4 x 5 x 6"),
        ("trmm", [(5, 5), (5, 3)], {}, "5 x 5 x 3"),
    ],
)
def test_explain_gives_the_product_of_an_operation(op, shapes, flags, sizes):
    trnblas.set_backend("nki")
    assert trnblas.explain(op, *shapes, **flags).padding.endswith(f"for {sizes}")


@pytest.mark.parametrize("transA", [False, True])
@pytest.mark.parametrize("transB", [False, True])
def test_explained_tiles_are_the_tiles_used(transA, transB, monkeypatch, tmp_path):
    from trnblas import tuning
    from trnblas.nki import launches

    used = []
    monkeypatch.setattr(
        launches, "launch", lambda kernel, *args: used.append(args[4:6]) or torch.zeros(1024, 600)
    )
    fake = lambda m, k, n, dtype, layout, all: min(all, key=lambda t: hash((layout, t)) % 97)  # noqa: E731
    monkeypatch.setattr(tuning, "fastest", fake)
    monkeypatch.setenv("TRNBLAS_CACHE_DIR", str(tmp_path))
    tuning.forget()
    trnblas.set_backend("nki")
    A = torch.zeros((70, 1024) if transA else (1024, 70))
    B = torch.zeros((600, 70) if transB else (70, 600))
    trnblas.gemm(1.0, A, B, transA=transA, transB=transB)
    assert used == [trnblas.explain("gemm", A, B, transA=transA, transB=transB).tiles]
    tuning.forget()


def test_every_operation_is_explained():
    public = set(trnblas.__all__) - {
        "HAS_NKI",
        "Explanation",
        "NkiFallbackWarning",
        "explain",
        "get_backend",
        "set_backend",
    }
    assert public <= set(KERNELS)


def test_wrong_arguments_of_explain_raise():
    with pytest.raises(ValueError, match="explain: 'gem' is not an operation; there are axpy"):
        trnblas.explain("gem", (1, 1))
    trnblas.set_backend("nki")
    with pytest.raises(ValueError, match=r"gemm of \(2, 3\) and \(2, 3\): 3 != 2"):
        trnblas.explain("gemm", (2, 3), (2, 3))
