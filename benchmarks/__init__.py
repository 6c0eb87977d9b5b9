"""Ratios measured in one run. `make bench` prints them all; nothing here is a test."""
