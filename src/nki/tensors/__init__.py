"""Views of storages, and the algebra that makes one from another (tensor.md).

Nothing here reads or moves data. The methods stand in one class per section of the manual, each built
on the one before: Layout, Indexed, Dimensioned, Reshaped, View.
"""

from .access import View
from .indexing import DynamicSlice, is_dynamic_index
from .layout import Indirection, Shape, is_int, row_major, shown

__all__ = ["DynamicSlice", "Indirection", "Shape", "View", "is_dynamic_index", "is_int", "row_major", "shown"]
