"""The tiny suite does not wait for the frameworks to be imported."""


def pytest_ignore_collect(collection_path, config):
    return True if config.getoption("markexpr", "") == "tiny" else None
