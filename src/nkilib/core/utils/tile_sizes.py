"""What every kernel asks for: how many partitions a tile has."""

import nki.language as nl

PMAX = nl.tile_size.pmax
