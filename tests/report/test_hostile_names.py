"""Names, sources and labels that try to leave their place on a page are shown as they are."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest

import nki
from nki import markup
from nki.check.findings import CheckFinding
from nki.check.formats import sarif
from nki.ir.program import Diagnostic
from nki.report.compare import both
from nki.timing.advisor import Advice

HOSTILE = [
    "<!--<script>",
    "<script>pwned = 1</script>",
    "</script><script>pwned = 1</script>",
    "--></script><img src=x onerror='pwned = 1'>",
    '"><img src=x onerror="pwned = 1">',
    "' onmouseover='pwned = 1' autofocus onfocus='pwned = 1",
    "</title></style></textarea></iframe><svg onload=pwned=1>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'>",
    "<a href='javascript:pwned = 1'>{{data}}</a>",
    "{{data}}",
    "{{script}}{{policy}}",
    "$title ${kernel} $$ %s {0} {kernel}",
    "\\u003cscript\\u003epwned = 1",
    "&lt;script&gt;pwned = 1&lt;/script&gt; &amp;",
    "line\u2028and\u2029paragraph",
    "half \ud800 of a pair",
    "${pwned = 1}`; pwned = 1; //",
    "]]><![CDATA[<script>pwned = 1</script>",
    "__proto__",
    "\x00\x1b[31m\x7f",
]
KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

HOSTILE = {text!a}


def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=HOSTILE)
    tile = nl.ndarray(x.shape, x.dtype, name=HOSTILE + "tile")  # {comment}
    nisa.dma_copy(tile, x, name=HOSTILE)  # {comment}
    nisa.tensor_tensor(tile, tile, tile, nl.add, name=HOSTILE)  # {comment}
    nisa.dma_copy(out, tile)  # {comment}
    return out


kernel.__name__ = HOSTILE
"""


def kernel_named(text, folder):
    """Return a kernel whose name, tensors, labels and source are the text."""
    file = folder / "kernel <b> & 'c'.py"
    comment = re.sub(r"[\x00-\x1f\u2028\u2029\ud800]", "", text)
    file.write_text(KERNEL.format(text=text, comment=comment), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("hostile_kernel", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return nki.jit(module.kernel)


def profile_of(kernel):
    text = kernel.__name__
    profile = nki.profile(kernel)(nki.TensorSpec((4, 6), "float32"))
    profile.findings = [Advice(text, text, text, (f"{text}.py:3",), 1.0)]
    profile.diagnostics = [Diagnostic("race", text, [text], text)]
    return profile


def pages(kernel):
    """Everything that shows a kernel, one below the other: as files in frames, and as a notebook does."""
    x, profile = np.ones((4, 6), np.float32), profile_of(kernel)
    world = nki.profile(kernel, ranks=2)(x)
    shown = [markup.frame("", page) for page in (both(profile, profile), world.html())]
    shown += [one._repr_html_() for one in (profile, nki.show(kernel)(x), kernel.run(x), kernel.trace(x))]
    return "<!doctype html><meta charset=utf-8><title></title>" + "".join(shown)


class Shown:
    """A page in the browser: what ran, what it complained about, the elements of all its frames."""

    def __init__(self, browser, text):
        page = browser.new_page()
        self.complaints = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        page.set_content(text)
        tags = (
            "[...document.querySelectorAll('script, iframe, img, svg, a, link, title')].map((e) => e.tagName)"
        )
        headings = "[...document.querySelectorAll('h1')].map((e) => e.textContent)"
        self.pwned = {frame.evaluate("typeof pwned") for frame in page.frames}
        self.elements = [frame.evaluate(tags) for frame in page.frames]
        self.headings = {text for frame in page.frames for text in frame.evaluate(headings)}
        page.close()


@pytest.fixture(scope="module")
def harmless(chromium, tmp_path_factory):
    """The elements of the pages of a kernel with a plain name."""
    return Shown(chromium, pages(kernel_named("plain", tmp_path_factory.mktemp("plain")))).elements


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=str(number), marks=pytest.mark.slow if number % 3 else ())
        for number, text in enumerate(HOSTILE)
    ],
)
def test_a_hostile_name_is_shown_as_text(text, chromium, harmless, tmp_path):
    page = pages(kernel_named(text, tmp_path))
    page.encode("utf-8")  # it can be written to a file
    shown = Shown(chromium, page)
    assert shown.complaints == [] and shown.pwned == {"undefined"}
    if shown.elements != harmless:  # a busy machine may have stopped while a page was drawing
        shown = Shown(chromium, page)
    assert shown.elements == harmless
    seen = text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    assert shown.headings == {seen, f"{seen} and {seen}"}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_data_comes_back_from_its_script_and_holds_nothing_of_html(text):
    plain = markup.script_data({text: [text]})
    assert not set(plain) & set("<>&\u2028\u2029") and plain.isascii()
    assert json.loads(plain) == {text: [text]}


def test_a_template_is_filled_once():
    assert markup.fill("{{a}} {{b}}", a="{{b}}", b="{{a}}") == "{{b}} {{a}}"
    with pytest.raises(KeyError):
        markup.fill("{{missing}}")


def test_a_page_is_allowed_its_own_scripts_alone():
    assert "script-src 'sha256-" in markup.policy("run()") and "unsafe-inline'; img" in markup.policy("run()")


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("a b.py", "a%20b.py"),
        ("100%.py", "100%25.py"),
        ("a#b?c.py", "a%23b%3Fc.py"),
        ("é<.py", "%C3%A9%3C.py"),
    ],
)
def test_sarif_has_percent_encoded_uris(name, uri):
    [result] = sarif([CheckFinding("race", "error", "text", name, 1)])["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
    [result] = sarif([CheckFinding("race", "error", "text", f"/elsewhere/{name}", 1)])["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == f"file:///elsewhere/{uri}"


def test_a_page_of_a_loaded_program_reads_no_file(tmp_path):
    """A program file may name any file of this machine as its source."""
    secret = tmp_path / "secret.txt"
    secret.write_text("".join(f"secret {n}\n" for n in range(100)))
    kernel = kernel_named("plain", tmp_path)
    text = str(kernel.trace(nki.TensorSpec((4, 6), "float32")))
    program = nki.Program.parse(text.replace(kernel.func.__code__.co_filename, str(secret)))
    page = program.profile().html()
    assert "secret.txt" in page and "secret 1" not in page
    assert "nisa.tensor_tensor(tile" in page
