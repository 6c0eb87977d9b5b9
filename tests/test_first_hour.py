"""First steps: warnings, options, the command line and shell completion."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import nki
import nki.cli
import nki.isa as nisa
import nki.language as nl
from nki.check.findings import CheckFinding, grouped
from nki.cli.terminal import show_message
from nki.errors import nearest


def python(code, *words):
    return subprocess.run([sys.executable, *words, "-c", code], capture_output=True, text=True)


def test_trnblas_without_torch_names_the_extra():
    done = python("import sys; sys.modules['torch'] = None; import trnblas")
    assert "pip install torch" in done.stderr


@pytest.mark.parametrize(
    "text, dtype",
    [("bf16", nl.bfloat16), ("f32", nl.float32), ("fp16", nl.float16), ("int8", nl.int8), ("i32", nl.int32)],
)
def test_tensor_specs_accept_short_names_of_dtypes(text, dtype):
    assert nki.TensorSpec.parse(f"{text}[3,4]") == nki.TensorSpec((3, 4), dtype)


PRIVATE = """
import numpy as np, nki, nki.isa as nisa, nki.language as nl
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    nisa.dma_copy(out, x)
    return out
kernel = nki.jit(kernel)
for _ in range(3):
    kernel(np.ones((2, 2), np.float32))
"""


def test_a_repeated_warning_is_printed_once_with_its_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PRIVATE)
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True).stderr
    assert printed.count("output-buffer") == 1
    assert printed.count("return out") == 1


def test_warning_filters_can_repeat_a_warning():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        nisa.dma_copy(out, x)
        return out

    for _ in range(2):
        with pytest.warns(nki.NkiWarning, match="private HBM"):
            kernel(np.ones((2, 2), np.float32))


# ---- options in the code -------------------------------------------------------------------------


@nki.jit
def platform_of(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(out, tile)
    return out


X = np.ones((2, 2), np.float32)


def test_the_platform_can_be_given_in_the_call():
    assert platform_of.run(X, target="trn1").machine.name == "trn1"
    assert platform_of.run(X).machine.name != "trn1"


def test_run_passes_target_to_a_kernel_with_such_a_parameter():
    @nki.jit
    def kernel(x, target):
        assert target == "mine"
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    assert kernel.run(X, target="mine").machine.name != "mine"


def test_options_apply_inside_their_block_and_nest():
    with nki.options(target="trn2"):
        assert platform_of.run(X).machine.name == "trn2"
        with nki.options(target="trn1", strict=True):
            assert platform_of.run(X).machine.name == "trn1"
        with nki.options(target=None):
            assert platform_of.run(X).machine.name == "trn2"


def test_strict_is_an_option():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        nisa.dma_copy(out, x)
        return out

    with nki.options(strict=True), pytest.raises(nki.NkiError, match="private HBM"):
        kernel(X)


@pytest.mark.parametrize(
    "wrong, message", [({"targte": "trn1"}, "did you mean target"), ({"x": 1}, "accepted")]
)
def test_unknown_options_raise_an_error_with_a_suggestion(wrong, message):
    with pytest.raises(nki.NkiError, match=message), nki.options(**wrong):
        pass


def test_options_apply_to_one_thread():
    import threading

    names = []
    with nki.options(target="trn1"):
        thread = threading.Thread(target=lambda: names.append(platform_of.run(X).machine.name))
        thread.start()
        thread.join()
    assert names != ["trn1"]


# ---- the command ---------------------------------------------------------------------------------


def command(*words):
    return subprocess.run([sys.executable, "-m", "nki", *words], capture_output=True, text=True)


def test_the_command_without_arguments_lists_what_it_can_do():
    done = command()
    assert done.returncode == 0 and "nki profile script.py:kernel" in done.stdout


def test_kernels_filters_by_a_word():
    done = command("kernels", "conv")
    assert "conv1d" in done.stdout and "attention_cte" not in done.stdout
    assert command("kernels", "nothing-like-it").returncode == 1


def test_info_prints_json():
    import json

    found = json.loads(command("info", "--json").stdout)
    assert found["platforms"]["trn2"]["partitions"] == "128" and found["open_nki"]
    assert found["numbers"]["trn2"]["sbuf_bytes"] == 224 * 1024


def test_show_writes_a_page(tmp_path):
    script = tmp_path / "kernel.py"
    script.write_text(PRIVATE.split("kernel = nki.jit")[0] + "kernel = nki.jit(kernel)\n")
    page = tmp_path / "page.html"
    done = command("show", f"{script}:kernel", "--arg", "x=f32[2,2]", "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stderr and "<title>kernel" in page.read_text()


def test_bash_completes_commands_options_and_files(tmp_path):
    import shutil

    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    (tmp_path / "kernel.py").write_text("@nki.jit\ndef one(x):\n    pass\n\n\ndef other():\n    pass\n")
    script = command("completion", "bash").stdout
    ask = """
    COMP_WORDS=(nki pro); COMP_CWORD=1; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki profile --per); COMP_CWORD=2; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki profile ker); COMP_CWORD=2; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki profile kernel.py :); COMP_CWORD=3; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki profile kernel.py : on); COMP_CWORD=4; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki profile kernel.py:); COMP_CWORD=2; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki explain capa); COMP_CWORD=2; _nki; echo "${COMPREPLY[@]}"
    COMP_WORDS=(nki check --target ""); COMP_CWORD=3; _nki; echo "${COMPREPLY[@]}"
    """
    printed = subprocess.run([bash, "-c", script + ask], capture_output=True, text=True, cwd=tmp_path).stdout
    kernels = ["one", "one", "kernel.py:one"]
    assert printed.splitlines() == [
        *("profile", "--perfetto", "kernel.py"),
        *kernels,
        *("capacity", "trn1 trn2 trn3"),
    ]


def test_fish_has_a_line_for_every_option():
    printed = command("completion", "fish").stdout
    assert "-a profile" in printed and "-l fail-if-slower" in printed


# ---- new kernels, scripts, suggestions -----------------------------------------------------------


def test_a_new_kernel_passes_its_test_and_the_checks(tmp_path):
    def at(*words):
        return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=tmp_path)

    made = at("nki", "new", "twice")
    assert made.returncode == 0 and "pytest test_twice.py" in made.stdout
    tested = at("pytest", "-q", "-p", "no:cacheprovider", "test_twice.py")
    assert tested.returncode == 0 and "3 passed" in tested.stdout, tested.stdout
    checked = at("nki", "check", "twice.py", "--for", "aws-0.6", "--target", "all")
    assert checked.returncode == 0 and "0 error(s), 0 warning(s)" in checked.stdout, checked.stdout
    assert "there is a file twice.py already" in at("nki", "new", "twice").stderr
    assert "no name of a Python function" in at("nki", "new", "a-b").stderr


CALLS = """
import numpy as np, nki, nki.isa as nisa, nki.language as nl

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out

if __name__ == "__main__":
    for columns in (8, 8, 16):
        print(double(np.ones((4, columns), np.float32)).sum())
"""


def test_a_profile_of_a_script_has_every_distinct_call(tmp_path, capsys):
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    assert nki.cli.main(["profile", str(script), "--json"]) == 0
    printed = capsys.readouterr()
    profiles = json.loads(printed.out)["profiles"]
    assert [one["hbm_read_bytes"] for one in profiles] == [4 * 8 * 4, 4 * 16 * 4]
    assert "64.0" in printed.err, "what the script prints"
    assert nki.cli.main(["profile", str(script), "--save", str(tmp_path / "p.json")]) == 2
    assert "calls kernels in 2 ways" in capsys.readouterr().err


def test_a_script_that_calls_nothing_is_profiled_by_its_declared_call(tmp_path, capsys):
    script = tmp_path / "declared.py"
    kernel = CALLS.partition("if __name__")[0]
    script.write_text(kernel.replace("x):\n", "x):\n    # nki: check x=f32[4,8]\n"))
    for spec in (script, f"{script}:double"):
        assert nki.cli.main(["profile", str(spec)]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("double on ") and "assumptions: nki profile --assumptions" in printed
    assert nki.cli.main(["profile", str(script), "--assumptions"]) == 0
    assert "because" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong, right, known",
    [
        ("mul", "multiply", ["matmul", "multiply", "multiply_add"]),
        ("op", "op0", ["dst", "op0", "op1"]),
        ("matmul", "nc_matmul", ["matmul_perf_mode", "nc_matmul"]),
        ("tensor_scaler", "tensor_scalar", ["tensor_tensor", "tensor_scalar"]),
        ("zzz", None, ["add"]),
    ],
)
def test_the_nearest_name(wrong, right, known):
    assert nearest(wrong, known) == right


def test_a_misspelt_command_is_corrected(capsys):
    assert nki.cli.main(["profle", "x.py"]) == 2
    assert "there is no command profle; did you mean profile?" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_messages_have_colours_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "NkiError[capacity]: too much\n  --> a.py:1\n  help: less [of] it"
    shown, log = Terminal(), io.StringIO()
    show_message(text, shown)
    show_message(text, log)
    assert "\x1b[1;31mNkiError[capacity]: too much\x1b[0m" in shown.getvalue()
    assert log.getvalue() == text + "\n" and re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue()) == text + "\n"


def test_equal_findings_are_one_with_all_places():
    found = [CheckFinding("psum", "error", "no", "a.py", line) for line in range(1, 4)]
    ((one, others),) = grouped(found)
    assert one.line == 1 and others == ["a.py:2", "a.py:3"]
    assert len(grouped([*found, CheckFinding("psum", "error", "other", "a.py", 9)])) == 2
