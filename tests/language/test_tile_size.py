"""nl.tile_size, buffers and NKIObject."""

from __future__ import annotations

import dataclasses
import warnings
from typing import ClassVar

import numpy as np
import pytest
from bodies import run

import nki
import nki.language as nl
from support import target

TABLE = {
    "pmax": (128, 128, 128),
    "psum_fmax": (512, 512, 512),
    "psum_bank_fmax": (512, 512, 512),
    "psum_bank_fmax_bytes": (2048, 2048, 2048),
    "psum_num_banks": (8, 8, 8),
    "gemm_stationary_fmax": (128, 128, 128),
    "gemm_moving_fmax": (512, 512, 512),
    "bn_stats_fmax": (512, 512, 512),
    "psum_min_align": (4, 4, 4),
    "sbuf_min_align": (1, 1, 1),
    "sbuf_size_bytes": (25165824, 29360128, 33554432),
    "sbuf_fmax_bytes": (180224, 212984, 245752),
    "sbuf_fmax": (45056, 53246, 61438),
    "total_available_sbuf_size": (180224, 212984, 245752),
}
PLATFORMS = ("trn1", "trn2", "trn3")


@pytest.mark.tiny
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_sizes_follow_the_platform_inside_and_outside_kernels(name, platform):
    wanted = TABLE[name][PLATFORMS.index(platform)]
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(lambda: seen.append(getattr(nl.tile_size, name)), on=platform)
        with target(platform):
            assert getattr(nl.tile_size, name) == wanted
    assert seen == [wanted] and type(seen[0]) is int


@pytest.mark.parametrize(("platform", "banks"), [("trn1", 8), ("trn2", 7), ("trn3", 7)])
def test_a_psum_bank_may_be_reserved(platform, banks, monkeypatch):
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "true")
    seen = []
    run(lambda: seen.append(nl.tile_size.psum_num_banks), on=platform)
    with target(platform):
        assert [nl.tile_size.psum_num_banks] == seen == [banks]


@pytest.mark.parametrize("name", ["psum_fmax", "total_available_sbuf_size"])
def test_deprecated_sizes_warn_quietly_at_the_users_line(name):
    with pytest.warns(PendingDeprecationWarning, match=name) as caught:
        getattr(nl.tile_size, name)
    assert caught[0].filename == __file__


def test_a_deprecated_size_in_a_loop_warns_once_a_call():
    def body():
        for _ in range(3):
            assert nl.tile_size.psum_fmax == 512

    for _ in range(2):
        with pytest.warns(PendingDeprecationWarning) as caught:
            run(body)
        assert len(caught) == 1


def test_there_is_no_psum_fmax_bytes():
    assert not hasattr(nl.tile_size, "psum_fmax_bytes")
    assert isinstance(nl.tile_size, nl.NKIObject)
    with target("trn1"):
        assert "trn1" in repr(nl.tile_size)


# ---- buffers -------------------------------------------------------------------------------------


def test_hbm_is_private_hbm():
    assert nl.hbm is nl.private_hbm
    assert len({nl.hbm, nl.private_hbm, nl.shared_hbm}) == 2
    assert [r.value for r in nl.MemoryRegion] == ["sbuf", "psum", "private_hbm", "shared_hbm"]
    assert not callable(nl.sbuf)


@pytest.mark.parametrize(
    ("region", "hbm", "sbuf", "psum"),
    [
        (nl.sbuf, False, True, False),
        (nl.psum, False, False, True),
        (nl.private_hbm, True, False, False),
        (nl.shared_hbm, True, False, False),
    ],
)
def test_regions_their_names_and_tensors_are_recognised(region, hbm, sbuf, psum):
    def answers(b):
        return nl.is_hbm(b), nl.is_sbuf(b), nl.is_psum(b), nl.is_on_chip(b)

    def body():
        assert answers(nl.ndarray((2, 2), nl.int8, region)) == expected

    expected = (hbm, sbuf, psum, sbuf or psum)
    assert answers(region) == answers(region.value) == expected
    run(body)


@pytest.mark.parametrize("other", [None, 3, "sram", "", np.ones(2), object(), nl.float32])
def test_anything_else_is_in_no_buffer(other):
    assert not (nl.is_hbm(other) or nl.is_sbuf(other) or nl.is_psum(other) or nl.is_on_chip(other))


# ---- NKIObject -----------------------------------------------------------------------------------


def test_keywords_become_attributes():
    config = nl.NKIObject(a=1, b="x")
    assert (config.a, config.b) == (1, "x") and config.is_nki_object is True
    assert repr(config) == "NKIObject(a=1, b='x')"
    with pytest.raises(TypeError, match="keywords only"):
        nl.NKIObject(3)


class Config(nl.NKIObject):
    LIMIT: ClassVar[int] = 9
    size: int
    scale: float = 2.0
    name: str = "c"

    def __post_init__(self):
        self.doubled = None if self.size is None else 2 * self.size


def test_annotated_fields_make_an_initialiser():
    config = Config(4, name="d")
    assert (config.size, config.scale, config.name, config.doubled) == (4, 2.0, "d", 8)
    assert Config().size is None
    assert Config.LIMIT == 9 and "LIMIT" not in vars(config)


@pytest.mark.parametrize(
    ("arguments", "keywords", "text"),
    [((1, 2, 3, 4), {}, "takes 3"), ((1,), {"size": 2}, "multiple"), ((), {"sise": 2}, "no field 'sise'")],
)
def test_wrong_fields_are_type_errors(arguments, keywords, text):
    with pytest.raises(TypeError, match=text):
        Config(*arguments, **keywords)


def test_own_initialisers_are_left_alone():
    class Own(nl.NKIObject):
        x: int

        def __init__(self, y):
            self.x = y + 1

    @dataclasses.dataclass
    class Derived(nl.NKIObject):
        x: dataclasses.InitVar[int]
        y: int = 0

        def __post_init__(self, x):
            self.y += x

    assert Own(2).x == 3 and Derived(2, 1).y == 3


@dataclasses.dataclass(frozen=True)
class Data(nl.NKIObject):
    x: int
    y: int = 5
    z: list = dataclasses.field(default_factory=list)
    w: int = dataclasses.field(default=1, init=False)


def test_a_dataclass_is_as_lenient_as_any_other_class():
    assert Data(1) == Data(1, 5) and dataclasses.is_dataclass(Data)
    assert Data().x is None and Data().w == 1
    assert Data(1).z == [] and Data(1).z is not Data(1).z
    assert dataclasses.replace(Data(1), y=2) == Data(1, 2)
    with pytest.raises(TypeError, match="no field 'w'"):
        Data(1, w=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Data(1).x = 2


def test_keywords_may_name_class_attributes_without_an_annotation():
    @dataclasses.dataclass
    class Section(nl.NKIObject):
        offset = None

    class Mixed(nl.NKIObject):
        size: int
        offset = None

    assert Section(offset=3).offset == 3 and Section().offset is None
    assert vars(Mixed(2, offset=3)) == {"size": 2, "offset": 3} and Mixed(2).offset is None


def test_a_subclass_inherits_fields():
    class More(Config):
        extra: int = 7

    more = More(1, 2.5, "n", 8)
    assert (more.size, more.scale, more.name, more.extra) == (1, 2.5, "n", 8)


def test_an_object_reaches_the_kernel_as_a_copy_with_tensors_inside():
    @nki.jit
    def kernel(config):
        out = nl.ndarray(config.data.shape, config.data.dtype, nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(config.data), config.scale))
        config.scale = 100.0
        return out

    config = nl.NKIObject(data=np.ones((4, 4), np.float32), scale=3.0)
    with target("trn2"):
        assert (kernel(config) == 3).all() and config.scale == 3.0
