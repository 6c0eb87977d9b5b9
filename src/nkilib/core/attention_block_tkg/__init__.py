"""The attention block of decode, under the path of its page."""
