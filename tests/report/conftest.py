"""A page of the viewer in a browser."""

import pytest

from report.test_html import Opened


@pytest.fixture
def page_of(chromium, tmp_path):
    """Open the page of a call; nothing is complained about."""
    opened = []

    def show(viewer, **options):
        path = tmp_path / f"{len(opened)}.html"
        viewer.save(path)
        opened.append(Opened(chromium, path, **options))
        return opened[-1]

    yield show
    for shown in opened:
        shown.page.close()
        assert shown.complaints == []
