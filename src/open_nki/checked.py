"""Importing this module raises ImportError where files of another distribution are in nki or nkilib."""

from . import check_import

check_import("nki", "nkilib")
