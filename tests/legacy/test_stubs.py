"""Import stubs for Neuron's packages, and `nki run`, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = str(Path(__file__).parent.parent.parent / "src")


def python(*arguments, cwd, **environment):
    env = {**os.environ, "PYTHONPATH": SOURCES, **environment}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env, timeout=300
    )


def nki_run(tmp_path, source, *arguments, **environment):
    script = tmp_path / "script.py"
    script.write_text(source)
    return python("-m", "nki", "run", str(script), *arguments, cwd=tmp_path, **environment)


KERNEL = """
import sys
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.language as nl
from neuronxcc.nki.isa.constants import dge_mode

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out
"""


def test_a_script_of_the_old_api_runs_with_its_arguments_and_exit_code(tmp_path):
    done = nki_run(
        tmp_path, KERNEL + "print(double(np.ones((2, 2), 'f')), sys.argv[1:])\nsys.exit(3)", "--steps", "4"
    )
    assert done.returncode == 3 and "[[2. 2.]" in done.stdout and "['--steps', '4']" in done.stdout
    assert "import stubs of Open NKI used: neuronxcc" in done.stderr


def test_import_nki_registers_nothing(tmp_path):
    done = python("-c", "import nki, neuronxcc", cwd=tmp_path)
    assert "No module named 'neuronxcc'" in done.stderr
    installed = "from nki_legacy import stubs; stubs.install(); import neuronxcc.nki"
    assert python("-c", installed, cwd=tmp_path).returncode == 0


def test_a_real_package_wins(tmp_path):
    (tmp_path / "torch_neuronx").mkdir()
    (tmp_path / "torch_neuronx" / "__init__.py").write_text("real = True\n")
    done = nki_run(tmp_path, "import torch_neuronx\nprint(torch_neuronx.real)")
    assert done.stdout == "True\n" and "import stubs" not in done.stderr


def test_a_name_that_a_stub_lacks_is_reported(tmp_path):
    done = nki_run(tmp_path, "import neuronxcc.nki.other")
    assert done.returncode == 1 and "the stub of Open NKI for neuronxcc lacks it" in done.stderr


def test_a_stub_may_be_left_out(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import neuronxcc")
    done = python("-m", "nki", "run", "--without", "neuronxcc", str(script), cwd=tmp_path)
    assert done.returncode == 1 and "No module named 'neuronxcc'" in done.stderr
    assert python("-m", "nki", "run", "--without", "numpy", str(script), cwd=tmp_path).returncode == 2


def test_variables_without_effect_are_named_and_removed_names_work(tmp_path):
    source = "import nki, numpy as np\nimport nki.language as nl\n" + (
        "def k(x):\n    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
        "    nl.store(out, nl.load(x))\n    return out\n"
        "x = np.ones((2, 2), 'f')\nprint(nki.simulate_kernel(k, x).sum(), nki.baremetal(k)(x).sum())\n"
    )
    done = nki_run(tmp_path, source, NEURON_CC_FLAGS="-O1")
    assert done.stdout == "4.0 4.0\n" and "NEURON_CC_FLAGS has no effect" in done.stderr


def test_child_processes_get_the_stubs(tmp_path):
    source = (
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', 'import neuronxcc.nki']))"
    )
    assert nki_run(tmp_path, source).returncode == 0


def test_torch_scripts_find_their_device_and_profiler(tmp_path):
    pytest.importorskip("torch")
    done = nki_run(
        tmp_path,
        KERNEL
        + """
import torch
from torch_xla.core import xla_model as xm
from torch_neuronx.experimental import profiler
import torch_neuronx
device = xm.xla_device()
host = torch.ones(2, 2)
x = host.to(device=device)
assert x is not host and torch.zeros(1, device="xla").device.type == "cpu"
with profiler.profile(port=9012, profile_type="system", output_dir="profiles", ms_duration=1):
    y = double(x)
xm.mark_step()
layer = torch_neuronx.trace(torch.nn.Linear(2, 3).to(device), torch.ones(4, 2))
print(y.cpu().sum().item(), tuple(layer(torch.ones(4, 2)).shape), torch_neuronx.__version__[:2])
""",
    )
    assert done.stdout == "8.0 (4, 3) 2.\n", done.stderr
    assert (tmp_path / "profiles" / "double_0.json").exists() and "modelled" in done.stderr


NATIVE = """
import torch
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out

x = torch.ones(4, 4, device=torch.device("neuron"))
"""


def test_pytorch_has_the_device_neuron_without_an_import(tmp_path):
    pytest.importorskip("torch")
    source = (
        NATIVE
        + """
compiled = torch.compile(lambda x: double(x) + 1, backend="neuron")
with torch.autocast(device_type="neuron"):
    y = torch.nn.Linear(4, 4).to("neuron")(compiled(x))
torch.neuron.synchronize()
import torch_neuronx
torch_neuronx._lazy_init()
assert torch_neuronx.device_count() == 1
with torch_neuronx.stream(torch_neuronx.Stream(x.device)):
    pass
torch.distributed.init_process_group(backend="neuron")
print(double(x).cpu().sum().item(), tuple(y.shape), torch.neuron.is_available(), torch.distributed.get_rank())
"""
    )
    done = nki_run(tmp_path, source)
    assert done.stdout == "32.0 (4, 4) True 0\n", done.stderr


def test_a_trace_of_torch_has_our_profiles_beside_it(tmp_path):
    pytest.importorskip("torch")
    source = (
        NATIVE
        + """
from torch.profiler import ProfilerActivity, profile
from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode
config = NeuronConfig(modes=[ProfileMode.DEVICE], profile_output_dir="output", max_events_per_nc=10)
both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
ready = NeuronProfiler(config).export_trace
with profile(activities=both, experimental_config=config, on_trace_ready=ready):
    double(x)
"""
    )
    done = nki_run(tmp_path, source)
    assert done.returncode == 0 and "modelled" in done.stderr, done.stderr
    expected = {"framework_trace.json", "double_0.json", "neff_0.neff", "0_instid_0_vnc_0.ntff"}
    assert expected == {path.name for path in (tmp_path / "output").iterdir()}


def test_without_the_stub_pytorch_has_no_device(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(NATIVE)
    done = python("-m", "nki", "run", "--without", "torch_neuronx", "script.py", cwd=tmp_path)
    assert done.returncode == 1 and "device string: neuron" in done.stderr


def test_a_module_runs_too(tmp_path):
    (tmp_path / "test_it.py").write_text(
        KERNEL + "def test_double():\n    assert double(np.ones((2, 2), 'f')).sum() == 8\n"
    )
    done = python(
        "-m", "nki", "run", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path
    )
    assert done.returncode == 0 and "1 passed" in done.stdout


def test_the_profiler_of_the_command_line_shows_what_was_modelled(tmp_path):
    done = nki_run(
        tmp_path,
        KERNEL
        + """
import json, subprocess
nki.profile(double, working_directory="out")(np.ones((2, 2), "f"))
show = "neuron-profile view -n out/file.neff -s out/profile.ntff --output-format summary-json".split()
shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
facts = next(iter(json.loads(shown).values()))
print(facts["modelled"], 0 < facts["total_time"] < 1, facts["hbm_read_bytes"])
print(subprocess.run(["neuron-profile", "capture", "-n", "script.py"], capture_output=True).returncode)
""",
    )
    assert done.stdout == "True True 16\n2\n", done.stderr


def test_a_guide_s_commands_make_our_report(tmp_path):
    pytest.importorskip("torch")
    done = nki_run(
        tmp_path,
        KERNEL
        + """
import subprocess
import torch, torch_neuronx
class Model(torch.nn.Module):
    def forward(self, x):
        return double(x) + 1
made = torch_neuronx.trace(Model(), torch.ones(2, 2), compiler_args="--lnc=1", compiler_workdir="./workdir")
print(made(torch.ones(2, 2)).sum().item())
capture = "neuron-explorer capture -n workdir/graph.neff -s profile.ntff --profile-nth-exec=2"
subprocess.run(capture.split(), check=True)
print(subprocess.run("neuron-explorer view --data-path ./shown".split(), check=True).returncode)
""",
    )
    assert "12.0\n" in done.stdout and done.stdout.endswith("0\n"), done.stderr
    assert (tmp_path / "profile_exec_2.ntff").exists()
    assert "modelled" in done.stdout and "double" in (tmp_path / "shown" / "profile_exec_2.html").read_text()


def test_a_trace_of_jax_has_our_profile_beside_it(tmp_path):
    pytest.importorskip("jax")
    source = (
        "import nki, numpy, jax\nimport nki.isa as nisa\nimport nki.language as nl\n"
        "@nki.jit\ndef copied(x):\n    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
        "    nisa.dma_copy(out, x)\n    return out\n"
        "with jax.profiler.trace('./output'):\n    y = copied(jax.numpy.ones((4, 4)))\n"
        "print(float(y.sum()))\n"
    )
    done = nki_run(tmp_path, source)
    assert done.stdout == "16.0\n", done.stderr
    assert {"copied_0.json", "neff_0.neff", "0_instid_0_vnc_0.ntff", "plugins"} <= {
        path.name for path in (tmp_path / "output").iterdir()
    }


def test_what_needs_a_device_is_refused_by_name(tmp_path):
    for arguments, said in (
        (["inspect", "-o", "out"], "inspect needs a device"),
        (["view", "-s", "missing.ntff"], "missing.ntff"),
        (["view"], "no .ntff in"),
    ):
        done = python("-m", "nki", "neuron-profile", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr


def test_kernels_of_the_old_compiler_run_where_nkilib_has_them(tmp_path):
    done = nki_run(
        tmp_path,
        """
import numpy as np
from neuronxcc.nki.kernels.attention import FlashConfig, flash_attn_bwd, flash_fwd
from neuronxcc.nki._private_kernels.attention import attention_isa_kernel
import neuronxcc.nki.nccl as nccl
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal(s).astype("f") for s in ((1, 2, 64, 256), (1, 1, 64, 256), (1, 1, 256, 64)))
out, lse = flash_fwd[1, 1](q, k, v, None)
scores = np.einsum("bhdq,bgdk->bhqk", q, k, dtype=np.float64) / 8
scores[..., np.triu(np.ones((256, 256), bool), 1)] = -np.inf
weights = np.exp(scores - scores.max(-1, keepdims=True))
sums = weights.sum(-1)
expected = np.einsum("bhqk,bgkd->bhqd", weights / sums[..., None], v)
np.testing.assert_allclose(out, expected, atol=2e-2)
logs = (np.log(sums) + scores.max(-1)).reshape(1, 2, 2, 128).swapaxes(-1, -2)
np.testing.assert_allclose(lse, logs, atol=2e-2)
assert flash_fwd[1, 1](q, k, v, None, config=FlashConfig(training=False)).shape == (1, 2, 256, 64)
for name in (flash_attn_bwd, attention_isa_kernel, nccl.all_reduce):
    try:
        name(q)
    except AttributeError as problem:
        print(str(problem).splitlines()[0].split()[-1])
""",
    )
    assert done.stdout == "flash_attn_bwd\nattention_isa_kernel\nall_reduce\n", done.stderr


def test_jax_neuronx_calls_kernels_of_its_time(tmp_path):
    pytest.importorskip("jax")
    done = nki_run(
        tmp_path,
        """
import jax, jax.numpy as jnp, jax_neuronx, libneuronxla
from jax_neuronx import nki_call
import neuronxcc.nki.language as nl
def add(a, b, out):
    i, j = nl.arange(4)[:, None], nl.arange(8)[None, :]
    nl.store(out[i, j], nl.load(a[i, j]) + nl.load(b[i, j]))
@jax.jit
def both(a, b):
    return nki_call(add, a, b, out_shape=jax.ShapeDtypeStruct((4, 8), jnp.float32)) * 2
print(float(both(jnp.ones((4, 8)), jnp.ones((4, 8))).sum()), hasattr(jax_neuronx, "other"))
try:
    libneuronxla.neuron_cc_wrapper
except AttributeError as problem:
    print(problem)
""",
    )
    assert done.stdout.startswith("128.0 False\nthe stub of Open NKI for libneuronxla lacks"), done.stderr


def test_packages_that_are_not_built_import_and_refuse_by_name(tmp_path):
    source = """
import torch
import neuronx_distributed_inference as whole
from neuronx_distributed.operators.argmax import argmax
from neuronx_distributed.operators.topk import topk
from neuronx_distributed_inference.models import config
from neuronx_distributed_inference.models.config import NeuronConfig
from neuronx_distributed_inference.utils.hf_adapter import load_pretrained_config

class Own(NeuronConfig):
    pass

x = torch.tensor([[1.0, 3.0, 2.0]])
assert argmax(x, 1, gather_dim=1).tolist() == [1] and topk(x, 2, dim=1, gather_dim=1)[1].tolist() == [[1, 2]]
assert config.NeuronConfig.__name__ == "NeuronConfig" and not hasattr(whole, "__wrapped__")
for call in (Own, config.NeuronConfig, load_pretrained_config, whole.utils.benchmark.benchmark_sampling):
    try:
        call(tp_degree=1)
    except Exception as problem:
        print(type(problem).__name__, str(problem).splitlines()[0])
"""
    done = nki_run(tmp_path, source)
    assert done.returncode == 0, done.stderr
    names = ("models.config.NeuronConfig",) * 2 + (
        "utils.hf_adapter.load_pretrained_config",
        "utils.benchmark.benchmark_sampling",
    )
    for line, name in zip(done.stdout.splitlines(), names, strict=True):
        assert f"for neuronx_distributed_inference lacks neuronx_distributed_inference.{name}:" in line
    assert "a script's own clock measures this machine" in done.stderr
