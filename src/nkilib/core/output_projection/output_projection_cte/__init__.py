"""Output projection of attention for prefill."""

from nkilib.core.output_projection.output_projection_cte.output_projection_cte import (
    output_projection_cte,
    output_projection_cte_ref,
)

__all__ = ["output_projection_cte", "output_projection_cte_ref"]
