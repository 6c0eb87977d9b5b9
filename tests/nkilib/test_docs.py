from pathlib import Path

import pytest

import nkilib.docs

ROOT = Path(__file__).parents[2]


@pytest.mark.tiny
def test_the_page_of_the_library_matches_the_code():
    written = (ROOT / nkilib.docs.PAGE).read_text()
    assert written == nkilib.docs.page(), "docs/library.md is stale: run `make docs`"


def test_the_command_writes_the_page(tmp_path, capsys):
    target = tmp_path / "new" / "library.md"
    nkilib.docs.main([str(target)])
    assert target.read_text() == nkilib.docs.page()
    assert str(target) in capsys.readouterr().out


def test_the_table_of_backwards_matches_the_code():
    written = (ROOT / nkilib.docs.MODELS).read_text()
    assert written == nkilib.docs.backwards(written), "docs/models.md is stale: run `make docs`"
