"""The random number generators of the engines (spec/isa_vector.md "Random model").

Hardware's bit streams are not documented. Ours are XORWOW, one generator per lane on GpSimdE and four per
lane on VectorE, whose element k of an instruction uses the lane's state k mod 4. The state belongs to the
simulated core, so it outlives a kernel; a process starts as after `set_rng_seed(0)`.
"""

from __future__ import annotations

import numpy as np

from ...ir.context import RunningCore

LANES = 128
WORDS = 6  # x, y, z, w, v and the counter d
STATES = {"vector": 4, "gpsimd": 1}  # per lane
_SHIFTED = WORDS - 1  # the words that are one history of v; d is separate
_WEYL = 362437  # increment of the counter


class Generator:
    """The XORWOW states of one engine: words[word, lane, state]."""

    def __init__(self, states: int):
        self.states = states
        self.words = np.zeros((WORDS, LANES, states), np.uint32)

    def seed(self, seed: int, skip: int = 0) -> None:
        """Fill all lanes from a 32-bit seed; `skip` omits the first words of each lane's stream."""
        words = seed_words(seed, skip + WORDS * self.states)[:, skip:]
        self.set_state(words | np.uint32(is_dead(words)))

    def set_state(self, words: np.ndarray) -> None:
        """Set the words of the first lanes, [lanes, states * 6]; the other lanes keep theirs."""
        lanes = words.shape[0]
        self.words[:, :lanes] = words.reshape(lanes, self.states, WORDS).transpose(2, 0, 1)

    def state(self, lanes: int) -> np.ndarray:
        """Return the words of the first lanes, [lanes, states * 6], one state after the other."""
        return self.words[:, :lanes].transpose(1, 2, 0).reshape(lanes, -1)

    def bits(self, lanes: int, count: int) -> np.ndarray:
        """Return the next `count` words of each of the first lanes, [lanes, count]."""
        steps = -(-count // self.states)
        history = self._history(lanes, steps)
        counter = np.arange(1, steps + 1, dtype=np.uint32)[:, None, None] * np.uint32(_WEYL)
        out = history[_SHIFTED:] + (counter + self.words[_SHIFTED, :lanes])
        self._advance(lanes, count, history)
        return out.transpose(1, 0, 2).reshape(lanes, -1)[:, :count]

    def uniform(self, lanes: int, count: int) -> np.ndarray:
        """Return the next numbers in [0, 1) of each lane: the upper 24 bits of its words."""
        return (self.bits(lanes, count) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)

    def _history(self, lanes: int, steps: int) -> np.ndarray:
        """Return x, y, z, w, v and then the v of each step: [5 + steps, lanes, states]."""
        history = np.empty((_SHIFTED + steps, lanes, self.states), np.uint32)
        history[:_SHIFTED] = self.words[:_SHIFTED, :lanes]
        for first in range(0, steps, _SHIFTED):
            # five steps at a time: the x of each is known already
            x = history[first : first + min(_SHIFTED, steps - first)]
            fresh = x ^ (x >> np.uint32(2))
            fresh ^= fresh << np.uint32(1)
            for i, v in enumerate(fresh, first + _SHIFTED):
                last = history[i - 1]
                v ^= last
                v ^= last << np.uint32(4)
                history[i] = v
        return history

    def _advance(self, lanes: int, count: int, history: np.ndarray) -> None:
        for state in range(self.states):
            steps = -(-(count - state) // self.states)
            self.words[:_SHIFTED, :lanes, state] = history[steps : steps + _SHIFTED, :, state]
            self.words[_SHIFTED, :lanes, state] += np.uint32(steps * _WEYL & 0xFFFFFFFF)


def seed_words(seed: int, count: int) -> np.ndarray:
    """Return the low halves of each lane's splitmix64 stream from seed << 32 | lane << 8: [lanes, count]."""
    start = np.uint64(seed << 32) | np.arange(LANES, dtype=np.uint64)[:, None] << np.uint64(8)
    z = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (z ^ z >> np.uint64(31)).astype(np.uint32)


def is_dead(words: np.ndarray) -> bool:
    """Return whether some state has only zeros in x to v, which XORWOW never leaves."""
    return not words.reshape(-1, WORDS)[:, :_SHIFTED].any(axis=1).all()


class Generators:
    """The generators of a launch, by core and engine: copies that no kernel of another thread uses.

    They start with the state of the process, which takes over theirs when the launch has succeeded.
    """

    def __init__(self) -> None:
        self.taken: dict[tuple[int, str], Generator] = {}

    def of(self, core: int, engine: str) -> Generator:
        """Return the generator of the "vector" or "gpsimd" engine of a simulated core."""
        found = self.taken.get((core, engine))
        if found is None:
            found = self.taken[core, engine] = Generator(STATES[engine])
            left = _left.get((core, engine))
            if left is not None:
                found.words = left.copy()
            else:  # GpSimdE starts after the words that VectorE uses, so that the two streams differ
                found.seed(0, skip=0 if engine == "vector" else WORDS * STATES["vector"])
        return found

    def keep(self) -> None:
        """Make this the state of the process: the launch has succeeded."""
        _left.update({key: generator.words for key, generator in self.taken.items()})


_left: dict[tuple[int, str], np.ndarray] = {}  # the words of every generator that a launch used


def generator(core: RunningCore, engine: str) -> Generator:
    """Return the generator of an engine of a running core."""
    return core.execution.generators.of(core.index, engine)


def reset() -> None:
    """Reset all generators of the process to their first state. For tests."""
    _left.clear()
