"""The `nki` command: what it prints, where, and its exit codes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.cli import main, terminal
from nki.progress import Progress

MATMUL = str(Path(__file__).parents[1] / "examples" / "matmul" / "kernels.py")
SHAPES = ["--arg", "lhsT=float32[256,128]", "--arg", "rhs=float32[256,512]"]
TRN2 = ["--target", "trn2"]

SCRIPT = """
    import nki
    import nki.isa as nisa
    import nki.language as nl
    import nki.typing as nt

    @nki.jit
    def double(x, factor=2.0, times=1):
        result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        for _ in range(times):
            nisa.tensor_scalar(tile, tile, nl.multiply, factor)
        nisa.dma_copy(result, tile)
        return result
"""


@pytest.fixture
def write(tmp_path):
    """A script in a fresh directory; returns its path."""

    def make(text=SCRIPT, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return make


@pytest.fixture
def run(capsys):
    """(exit code, stdout, stderr) of a command line."""

    def call(*argv):
        capsys.readouterr()
        code = main(list(map(str, argv)))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def refused(result, *pieces, code=2):
    """The command failed with this code, and said so on stderr without a traceback of ours."""
    got, out, err = result
    assert got == code, err
    assert out == ""
    for piece in pieces:
        assert piece in err, err
    assert "Traceback" not in err and "/src/nki/" not in err


# ---- nki profile ---------------------------------------------------------------------------------


@pytest.mark.tiny
def test_profile_prints_the_table(run):
    code, out, err = run("profile", f"{MATMUL}:tiled", *SHAPES, *TRN2)
    assert (code, err) == (0, "")
    assert out.startswith("tiled on trn2, 1 core: ")
    assert "nisa.nc_matmul" in out and "\x1b" not in out


def test_json_is_one_object_with_every_promised_key(run):
    code, out, _ = run("profile", f"{MATMUL}:blocked_mn", *SHAPES, "--arg", "tiles_m=1", *TRN2, "--json")
    figures = json.loads(out)
    assert code == 0
    assert figures["target"] == "trn2" and figures["total_us"] > 0
    for engine in ("tensor", "vector", "scalar", "gpsimd", "sync", "dma"):
        for key in ("active_percent", "active_us", "instructions"):
            assert key in figures["engines"][engine]
    assert "packet_us" in figures["dma"]
    for key in ("mfu_percent", "mbu_percent", "hbm_read_bytes", "hbm_write_bytes", "sbuf_peak_bytes"):
        assert key in figures
    assert {"psum_peak_bytes", "spill_bytes", "findings"} <= set(figures)


def test_the_only_kernel_needs_no_name(run, write):
    code, out, _ = run("profile", write(), "--arg", "x=float32[128,512]", *TRN2)
    assert code == 0 and out.startswith("double on trn2")


def test_arguments_are_tensors_python_values_or_text(run, write):
    path = write(
        """
        import nki
        import nki.language as nl

        @nki.jit
        def kernel(x, sizes, flag, label, *, dtype):
            assert x.shape == (128, 4) and str(x.dtype) == "bfloat16"
            assert sizes == [1, 2] and flag is True and label == "fast", (sizes, flag, label)
            return nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
        """
    )
    given = ["x=bfloat16[ 128, 4 ]", "sizes=[1, 2]", "flag=True", "label=fast", "dtype=bfloat16"]
    code, _, err = run("profile", path, *[piece for text in given for piece in ("--arg", text)])
    assert code == 0, err


def test_the_number_of_an_argument_changes_the_work(run, write):
    def instructions(*more):
        _, out, _ = run("profile", write(), "--arg", "x=float32[128,64]", *more, *TRN2, "--json")
        return json.loads(out)["engines"]["vector"]["instructions"]

    assert (instructions(), instructions("--arg", "times=5")) == (1, 5)


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3", "gen3"])
def test_the_target_decides_the_machine_and_is_forgotten_afterwards(run, write, on, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    code, out, _ = run("profile", write(), "--arg", "x=float32[128,64]", "--target", on, "--json")
    assert code == 0 and json.loads(out)["target"] == {"gen3": "trn2"}.get(on, on)
    assert os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn1"


def test_a_kernel_is_launched_on_two_cores(run, write):
    code, out, _ = run("profile", write(), "--arg", "x=float32[128,64]", *TRN2, "--lnc", 2, "--json")
    assert code == 0 and json.loads(out)["cores"] == 2


def test_files_are_written_and_named_on_stderr(run, write, tmp_path):
    pytest.importorskip("perfetto")
    trace, saved = tmp_path / "out.pftrace", tmp_path / "out.json"
    code, out, err = run(
        "profile", write(), "--arg", "x=float32[128,64]", *TRN2, "--perfetto", trace, "--save", saved
    )
    assert code == 0 and out.startswith("double on trn2")
    assert f"wrote {trace}" in err and f"wrote {saved}" in err
    assert len(trace.read_bytes()) > 100
    assert nki.Profile.load(saved).kernel == "double"


def test_the_page_is_written(run, write, tmp_path):
    pytest.importorskip("nki.report.html")
    page = tmp_path / "out.html"
    code, _, err = run("profile", write(), "--arg", "x=float32[128,64]", *TRN2, "--html", page)
    assert code == 0 and f"wrote {page}" in err
    assert "<html" in page.read_text().lower()


def test_what_the_script_prints_does_not_spoil_the_json(run, write):
    path = write(SCRIPT.replace("import nki\n", "import nki\n    print('loaded')\n", 1))
    code, out, err = run("profile", path, "--arg", "x=float32[128,64]", "--json")
    assert code == 0 and json.loads(out) and "loaded" in err


def test_diagnostics_stand_in_the_report_and_not_between(run, write):
    path = write(
        """
        import nki
        import nki.isa as nisa
        import nki.language as nl

        @nki.jit
        def kernel(x):
            result = nl.ndarray((64, 256), x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(result, x)
            return result
        """
    )
    code, out, err = run("profile", path, "--arg", "x=float32[128,128]", *TRN2)
    assert (code, err) == (0, "")
    assert "What hardware may reject" in out and "[dma-shape]" in out


def test_a_plain_function_and_a_neighbouring_module_are_found(run, write):
    write("import nki.language as nl\nWIDTH = 64\n", "neighbour_of_script.py")
    path = write(
        """
        import nki.isa as nisa
        import nki.language as nl
        from neighbour_of_script import WIDTH

        def fill(x):
            result = nl.ndarray((128, WIDTH), nl.float32, buffer=nl.shared_hbm)
            tile = nl.ndarray((128, WIDTH), nl.float32, buffer=nl.sbuf)
            nisa.memset(tile, 0.0)
            nisa.dma_copy(result, tile)
            return result
        """
    )
    before = list(sys.path)
    code, out, err = run("profile", f"{path}:fill", "--arg", "x=float32[1,1]")
    assert code == 0 and out.startswith("fill on"), err
    assert sys.path == before and "neighbour_of_script" not in sys.modules


# ---- wrong command lines: exit code 2 ------------------------------------------------------------


def test_a_missing_file_is_named(run, write):
    path = write(name="softmax.py")
    refused(run("profile", "nowhere/none.py:k"), "nki profile: there is no file nowhere/none.py")
    refused(
        run("profile", path.replace("softmax", "sofmax")), "there is no file", "did you mean", "softmax.py?"
    )


def test_a_directory_is_no_script(run, tmp_path):
    refused(run("profile", tmp_path), "is a directory")


def test_a_missing_kernel_lists_those_found(run):
    refused(
        run("profile", f"{MATMUL}:tilde"),
        "there is no kernel tilde",
        "did you mean tiled?",
        "single_tile, tiled, hoisted, blocked_mn, blocked_mnk",
    )


def test_something_else_of_that_name_is_no_kernel(run):
    refused(run("profile", f"{MATMUL}:TILE_K"), "TILE_K in", "is no kernel", "kernels in")


def test_several_kernels_need_a_name(run):
    refused(run("profile", MATMUL), "name a kernel, as in", ":single_tile", "blocked_mnk")


def test_a_script_without_kernels_is_refused(run, write):
    refused(run("profile", write("x = 1\n")), "there is no kernel to take", "has no function with @nki.jit")


def test_missing_arguments_are_named_with_the_signature(run):
    refused(
        run("profile", f"{MATMUL}:tiled", "--arg", "rhs=float32[128,512]"),
        "tiled needs lhsT",
        "tiled(lhsT, rhs)",
        "add --arg lhsT=...",
    )


def test_unknown_arguments_are_named_with_the_nearest(run):
    refused(
        run("profile", f"{MATMUL}:tiled", *SHAPES, "--arg", "lhs=4"),
        "tiled has no parameter lhs; did you mean lhsT?",
        "tiled(lhsT, rhs)",
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("lhsT", ["--arg lhsT: write name=value", "lhsT=float32[8192,4096]"]),
        ("=4", ["--arg =4: write name=value"]),
        ("lhsT=float32[8192,x]", ["--arg lhsT:", "is not a tensor", "float32[8192,4096]"]),
        ("lhsT=float32[]", ["--arg lhsT:", "is not a tensor"]),
        ("lhsT=float32[0,4]", ["--arg lhsT:", "holds no element"]),
        ("lhsT=float33[8,4]", ["--arg lhsT:", "float33"]),
        ("rhs=4", ["--arg rhs is given twice"]),
    ],
)
def test_a_malformed_argument_is_explained(run, text, pieces):
    refused(run("profile", f"{MATMUL}:tiled", "--arg", "rhs=float32[128,512]", "--arg", text), *pieces)


def test_a_shape_other_than_declared_is_refused(run, write):
    path = write(SCRIPT.replace("double(x,", "double(x: nt.tensor[128, 512],"))
    refused(
        run("profile", path, "--arg", "x=float32[128,64]"), "argument 'x' has shape (128, 64)", "128, 512"
    )
    assert run("profile", path, "--arg", "x=float32[128,512]")[0] == 0


def test_an_unknown_platform_lists_the_known(run, write):
    refused(
        run("profile", write(), "--target", "trn22"), "--target: there is no platform 'trn22'", "trn2", "gen4"
    )


def test_a_launch_on_too_many_cores_is_refused(run, write):
    more = ["--arg", "x=float32[128,64]"]
    refused(
        run("profile", write(), *more, *TRN2, "--lnc", 3), "--lnc 3: trn2 launches a kernel on 1 or 2 core(s)"
    )
    refused(
        run("profile", write(), *more, "--target", "trn1", "--lnc", 2), "trn1 launches a kernel on 1 core(s)"
    )


@pytest.mark.parametrize("flag", ["--html", "--perfetto", "--save"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(run, write, tmp_path, flag):
    path = write("raise SystemExit('never loaded')\n")
    refused(run("profile", path, flag, tmp_path), f"{flag} {tmp_path}: this is a directory")
    refused(run("profile", path, flag, tmp_path / "no" / "file"), "there is no directory")


def test_a_missing_perfetto_names_the_extra(run, write, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "perfetto" else real(name, *rest)
    )
    refused(run("profile", write(), "--perfetto", tmp_path / "t"), "pip install perfetto protobuf")


def test_an_exit_while_loading_is_refused_with_how_to_fix_it(run, write):
    script = write("import sys\nsys.exit(3)\n")
    refused(run("profile", f"{script}:kernel"), "SystemExit(3)", 'if __name__ == "__main__"')
    refused(run("profile", script), "ended with exit code 3 before it called a kernel")


def test_argparse_refusals_and_help_come_back_as_codes(run):
    code, _, err = run("profile")
    assert code == 2 and "usage: nki profile" in err
    code, out, _ = run()
    assert code == 0 and "next:" in out
    assert run("frobnicate")[0] == 2
    for command in ("profile", "compare", "check", "kernels", "info"):
        code, out, _ = run(command, "--help")
        assert code == 0 and "--traceback" in out
    code, out, _ = run("--version")
    assert code == 0 and nki.__version__ in out


# ---- wrong kernels: exit code 1 ------------------------------------------------------------------


def test_an_error_of_the_kernel_shows_kind_line_and_help(run, write):
    path = write()
    code, out, err = run("profile", path, "--arg", "x=float32[256,64]")
    assert (code, out) == (1, "")
    assert re.match(r"NkiError\[[\w-]+\]: ", err)
    assert f"--> {path}:" in err and "nl.ndarray(x.shape" in err and "Traceback" not in err


def test_a_wrong_keyword_in_the_kernel_shows_the_accepted_ones(run, write):
    path = write(SCRIPT.replace("nisa.dma_copy(tile, x)", "nisa.dma_copy(tile, source=x)"))
    result = run("profile", path, "--arg", "x=float32[128,64]")
    refused(result, "NkiError[argument]", "source", "accepted: dst, src", f"{path}:", code=1)


def test_a_python_error_of_the_kernel_shows_the_users_frames_alone(run, write):
    path = write(SCRIPT.replace("nisa.dma_copy(tile, x)", "nisa.dma_copy(tile, missing)"))
    result = run("profile", path, "--arg", "x=float32[128,64]")
    refused(result, "NameError: name 'missing' is not defined", f'File "{path}", line', "in double", code=1)


def test_an_error_while_loading_shows_the_users_frames_alone(run, write):
    path = write("def f():\n    return 1 / 0\n\nf()\n")
    refused(run("profile", path), "ZeroDivisionError", f'File "{path}", line 2, in f', code=1)
    assert "importlib" not in run("profile", path)[2]


def test_a_syntax_error_shows_the_place(run, write):
    path = write("def f(:\n    pass\n")
    refused(run("profile", path), "SyntaxError", f'File "{path}", line 1', code=1)


def test_traceback_shows_all(run, write):
    code, _, err = run("profile", write("1 / 0\n"), "--traceback")
    assert code == 1 and "Traceback (most recent call last)" in err and "nki/cli" in err


def test_an_internal_error_is_reported_without_a_traceback(run, write, monkeypatch):
    monkeypatch.setattr("nki.cli.script.Path", None)
    refused(run("profile", write()), "TypeError", "fault of Open NKI itself", "--traceback", code=1)


def test_an_interruption_ends_quietly(run, write, monkeypatch):
    def interrupted(*a):
        raise KeyboardInterrupt

    monkeypatch.setattr("nki.cli.profiling.make_profile", interrupted)
    refused(run("profile", write()), "interrupted", code=130)


# ---- nki compare ---------------------------------------------------------------------------------


def test_two_kernels_are_compared_with_shared_arguments(run):
    code, out, _ = run("compare", f"{MATMUL}:tiled", f"{MATMUL}:blocked_mnk", *SHAPES, *TRN2)
    assert code == 0
    assert "tiled trn2" in out and "blocked_mnk trn2" in out and "change" in out and "as fast" in out


def test_an_argument_may_belong_to_one_kernel_alone(run):
    code, out, err = run("compare", f"{MATMUL}:tiled", f"{MATMUL}:blocked_mnk", *SHAPES, "--arg", "tiles_k=1")
    assert code == 0, err
    refused(
        run("compare", f"{MATMUL}:tiled", f"{MATMUL}:hoisted", *SHAPES, "--arg", "tiles_k=1"),
        "--arg tiles_k: neither kernel has such a parameter",
    )


def test_saved_profiles_are_compared_with_each_other_and_with_kernels(run, tmp_path):
    first, second = tmp_path / "tiled.json", tmp_path / "hoisted.json"
    run("profile", f"{MATMUL}:tiled", *SHAPES, *TRN2, "--save", first)
    run("profile", f"{MATMUL}:hoisted", *SHAPES, *TRN2, "--save", second)
    code, out, _ = run("compare", first, second)
    assert code == 0 and "tiled trn2" in out and "hoisted trn2" in out
    code, mixed, _ = run("compare", first, f"{MATMUL}:hoisted", *SHAPES, *TRN2)
    assert (code, mixed) == (0, out)


def test_two_profiles_are_written_on_one_page(run, tmp_path):
    page = tmp_path / "both.html"
    code, out, err = run("compare", f"{MATMUL}:tiled", f"{MATMUL}:hoisted", *SHAPES, *TRN2, "--html", page)
    assert code == 0 and f"wrote {page}" in err
    text = page.read_text("utf-8")
    assert text.count("<iframe") == 2 and "tiled and hoisted" in text and "Findings of b" in text


def test_compare_as_json_holds_both_and_the_ratio(run):
    code, out, _ = run("compare", f"{MATMUL}:tiled", f"{MATMUL}:hoisted", *SHAPES, *TRN2, "--json")
    both = json.loads(out)
    assert code == 0
    assert both["a"]["kernel"] == "tiled" and both["b"]["kernel"] == "hoisted"
    assert both["speedup"] == pytest.approx(both["a"]["total_us"] / both["b"]["total_us"])


def test_versions_of_one_script_in_two_directories_do_not_mix(run, write):
    kernel = SCRIPT.replace("import nki.typing as nt", "from helper_of_version import TIMES")
    kernel = kernel.replace("range(times)", "range(TIMES)")
    paths = []
    for version, times in (("old", 3), ("new", 1)):
        write(f"TIMES = {times}\n", f"{version}/helper_of_version.py")
        paths.append(write(kernel, f"{version}/kernel.py"))
    code, out, _ = run("compare", *paths, "--arg", "x=float32[128,64]", "--json")
    counts = [json.loads(out)[side]["engines"]["vector"]["instructions"] for side in "ab"]
    assert (code, counts) == (0, [3, 1])


def test_what_cannot_be_compared_is_refused(run, write, tmp_path):
    other = write("{}", "other.json")
    refused(run("compare", other, other), "is not a saved profile", "nki profile --save", "script.py:kernel")
    refused(run("compare", tmp_path / "none.json", other), "there is no file")
    binary = tmp_path / "trace.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    refused(run("compare", binary, binary), "trace.bin")
    refused(run("compare", f"{MATMUL}:tiled", f"{MATMUL}:hoisted"), "tiled needs lhsT, rhs")


# ---- nki check and nki info ----------------------------------------------------------------------


def test_check_accepts_the_examples(run):
    code, out, _ = run("check", MATMUL)
    assert code == 0
    assert "single_tile, tiled, hoisted, blocked_mn, blocked_mnk: 0 error(s)" in out


def test_check_shows_what_the_compilers_refuse(run, write):
    path = write(
        """
        import nki

        @nki.jit
        def good(x):
            return x

        @nki.jit
        def bad(x):
            try:
                return x
            except ValueError:
                return None
        """
    )
    code, out, _ = run("check", path)
    assert code == 1
    assert re.search(r"NkiError\[[\w-]+\]: ", out) and f"--> {path}:" in out and "^" in out
    assert run("check", f"{path}:good")[0] == 0
    assert "0 error(s)" in run("check", f"{path}:good", "--front-end", "tracer")[1]


def test_check_needs_a_kernel(run, write):
    refused(run("check", write("x = 1\n")), "nki check:", "has no function with @nki.jit")
    refused(run("check", f"{write()}:dubble"), "did you mean double?")


@pytest.mark.tiny
def test_kernels_lists_the_library(run):
    code, out, _ = run("kernels")
    lines = out.splitlines()
    assert code == 0 and max(map(len, lines)) <= 100 and "\u2026" not in out
    place = lines.index(" nkilib.core.rmsnorm.rmsnorm_quant")
    assert re.match(r"   rmsnorm_quant_kernel +RMSNorm of every row, .* 2.27", lines[place + 1])


def test_kernels_are_found_by_synonyms_and_their_import_lines_can_be_copied(run):
    for word, name in (("flash", "attention_cte"), ("sdpa", "attention_tkg"), ("layernorm", "mlp")):
        assert name in {kernel["name"] for kernel in json.loads(run("kernels", word, "--json")[1])}
    _, out, _ = run("kernels", "embedding lookup")
    assert "\nfrom nkilib.experimental.misc import gather\n" in out and "gather_bwd" in out and "2.31" in out


def test_kernels_know_the_release_of_an_option_and_are_found_by_it(run):
    found = {k["name"]: k for k in json.loads(run("kernels", "cp_softmax_stats_out", "--json")[1])}
    assert found.keys() == {"attention_tkg"}
    assert found["attention_tkg"]["options"]["cp_softmax_stats_out"] == "2.32"
    assert "\nattention_tkg, since 2.32: cp_softmax_stats_out\n" in run("kernels", "attention_tkg")[1]


def test_kernels_as_json_has_every_page(run):
    code, out, _ = run("kernels", "--json")
    listed = json.loads(out)
    assert code == 0 and {kernel["page"] for kernel in listed} >= {f"L{n:02}" for n in range(1, 47)}
    facts = {"name", "import", "line", "meaning", "page", "status", "release", "backward", "also", "options"}
    assert all(set(kernel) == facts for kernel in listed)
    assert {kernel["status"] for kernel in listed} <= {"built", "not yet"}


def test_kernels_without_a_hit_prints_an_empty_list_and_exits_with_1(run):
    code, out, _ = run("kernels", "no such kernel", "--json")
    assert code == 1 and json.loads(out) == []
    code, out, err = run("kernels", "no such kernel")
    assert code == 1 and not out and "no kernel has 'no such kernel'" in err


def test_info_shows_version_platforms_and_limits(run):
    code, out, _ = run("info")
    assert code == 0 and nki.__version__ in out
    for text in ("trn1", "trn2", "trn3", "inf2", "212,984 B", "16 KiB in 8 banks", "716 GB/s", "perfetto"):
        assert text in out


# ---- terminals -----------------------------------------------------------------------------------


def test_progress_is_shown_once_it_takes_long(run, write, monkeypatch):
    monkeypatch.setattr(terminal, "DELAY", 0.0)
    slow = SCRIPT.replace("import nki\n", "import nki\n    import time\n    time.sleep(0.2)\n", 1)
    code, out, err = run("profile", write(slow), "--arg", "x=float32[128,64]")
    assert code == 0 and "nki: " not in out
    assert "nki: tracing double ..." in err and "nki: scheduling 3 instructions ..." in err


def test_a_quick_command_shows_no_progress(run, write):
    assert run("profile", write(), "--arg", "x=float32[128,64]")[2] == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "DELAY", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with terminal.Stages(2) as stage:
        stage("loading")
        stage.timer.join()
        assert stage.bar is not None
        stage("tracing")
    err = capsys.readouterr().err
    assert "tracing" in err and "━" in err


def test_progress_estimates_the_time_left_of_a_stage(monkeypatch):
    clock = iter((100.0, 103.0, 104.0))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    work, done = Progress("scheduling 40 instructions"), []
    work.expect(40, [done])
    stage = terminal.Stages()
    stage(work)
    assert stage.left() == ""  # nothing is done yet
    done += range(10)
    assert stage.left() == "about 12 s left"  # a quarter took 4 s


def test_the_progress_of_a_profile_is_complete_when_it_ends():
    @nki.jit
    def twice(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(x, tile)

    stages = []
    nki.profile(twice, stage=stages.append)(nki.TensorSpec((128, 64), "float32"))
    (scheduled,) = [stage for stage in stages if isinstance(stage, Progress)]
    assert scheduled == "scheduling 3 instructions" and scheduled.part() == 1.0


def test_colour_is_for_terminals_alone(run, write, monkeypatch):
    more = ["--arg", "x=float32[128,64]"]
    assert "\x1b" not in run("profile", write(), *more)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in run("profile", write(), *more)[1]


def test_the_installed_command_runs_and_survives_a_closed_pipe(write):
    command = [sys.executable, "-m", "nki", "profile", write(), "--arg", "x=float32[128,64]"]
    piped = subprocess.run(
        f"{' '.join(command)} | head -1", shell=True, capture_output=True, text=True, timeout=60
    )
    assert piped.stdout.startswith("double on") and piped.stderr == ""


def test_a_file_of_a_package_may_import_relatively(run, tmp_path):
    package = tmp_path / "relative_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 64\n")
    (package / "kernels.py").write_text(
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\nfrom .sizes import WIDTH\n\n\n"
        "@nki.jit\ndef fill(x):\n"
        "    out = nl.ndarray((4, WIDTH), nl.float32, buffer=nl.shared_hbm)\n"
        "    tile = nl.ndarray((4, WIDTH), nl.float32)\n"
        "    nisa.memset(tile, 0.0)\n    nisa.dma_copy(out, tile)\n    return out\n"
    )
    before = list(sys.path)
    code, out, _ = run("profile", str(package / "kernels.py"), "--arg", "x=float32[4,4]", "--json")
    assert code == 0 and json.loads(out)["total_us"] > 0
    assert sys.path == before and "relative_package" not in sys.modules


# ---- nki trace -----------------------------------------------------------------------------------


def test_trace_prints_the_program(run, write):
    path = write()
    code, out, err = run("trace", f"{path}:double", "--arg", "x=float32[4,8]", "--arg", "times=2", *TRN2)
    assert code == 0 and out.startswith('# nki program 1\nprogram("double", "trn2")\n') and not err.strip()
    program = nki.Program.parse(out)
    assert [i.public for i in program.walk()] == ["dma_copy", "tensor_scalar", "tensor_scalar", "dma_copy"]
    facts = json.loads(run("trace", f"{path}:double", "--arg", "x=float32[4,8]", "--json")[1])
    assert len(facts["cores"][0]) == 3 and facts["storages"][0]["parameter"] == "x"


def test_trace_saves_the_program(run, write, tmp_path):
    saved = str(tmp_path / "double.nki")
    code, out, err = run("trace", f"{write()}:double", "--arg", "x=float32[4,8]", "--save", saved)
    assert code == 0 and out == "" and f"wrote {saved}" in err
    assert nki.Program.load(saved).name == "double"


def test_a_script_may_have_a_dot_in_its_name(run, write):
    code, out, _ = run("trace", f"{write(name='mm.v2.py')}:double", "--arg", "x=float32[4,8]")
    assert code == 0 and "tensor_scalar" in out


# ---- nki explain-cache ---------------------------------------------------------------------------

TIMED = """
    import time

    @nki.jit
    def timed(x):
        return time.time()
"""


def test_explain_cache_names_the_line(run, write):
    path = write(SCRIPT + TIMED)
    code, out, err = run("explain-cache", path)
    assert (code, err) == (0, "")
    assert out.startswith("double: cached\ntimed: its Python runs at every call\n")
    assert f"{path}:21: timed uses time.time: built-in function time" in out
    assert run("explain-cache", f"{path}:double")[1] == "double: cached\n"


def test_explain_cache_prints_json(run, write):
    code, out, _ = run("explain-cache", write(SCRIPT + TIMED), "--json")
    facts = json.loads(out)
    assert code == 0 and [(f["kernel"], f["cacheable"]) for f in facts] == [
        ("double", True),
        ("timed", False),
    ]
