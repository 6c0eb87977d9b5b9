"""The end of a decode step of GPT-OSS: norm, head, candidates and the next token."""

from .tail_chunked_megakernel import gpt_oss_tail_chunked_megakernel, gpt_oss_tail_ref

__all__ = ["gpt_oss_tail_chunked_megakernel", "gpt_oss_tail_ref"]
