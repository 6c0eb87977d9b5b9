"""The older name of attention_kv_parallel_segmented_cte."""

from .attention_kv_parallel_segmented_cte import attention_kv_parallel_segmented_cte

kv_parallel_segmented_prefill = attention_kv_parallel_segmented_cte
