"""nki.language (nl): tensors, loops, operators and functions built on instructions.

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

from builtins import range as range
from collections.abc import Sequence
from nki.ir.layout import Int
from nki.ir.tensor import NkiTensor as NkiTensor
from nki.language.buffers import is_hbm as is_hbm
from nki.language.buffers import is_on_chip as is_on_chip
from nki.language.buffers import is_psum as is_psum
from nki.language.buffers import is_sbuf as is_sbuf
from nki.language.creation import empty_like as empty_like
from nki.language.creation import full as full
from nki.language.creation import ones as ones
from nki.language.creation import rand as rand
from nki.language.creation import zeros as zeros
from nki.language.creation import zeros_like as zeros_like
from nki.language.history import cast as cast
from nki.language.history import nc as nc
from nki.language.history import par_dim as par_dim
from nki.language.history import spmd_dim as spmd_dim
from nki.language.loops import affine_range as affine_range
from nki.language.loops import dynamic_range as dynamic_range
from nki.language.loops import fori_loop as fori_loop
from nki.language.loops import no_reorder as no_reorder
from nki.language.loops import sequential_range as sequential_range
from nki.language.loops import static_range as static_range
from nki.language.loops import while_loop as while_loop
from nki.language.movement import broadcast_to as broadcast_to
from nki.language.movement import dropout as dropout
from nki.language.movement import expand_dims as expand_dims
from nki.language.movement import gather_flattened as gather_flattened
from nki.language.movement import load as load
from nki.language.movement import load_transpose2d as load_transpose2d
from nki.language.movement import matmul as matmul
from nki.language.movement import random_seed as random_seed
from nki.language.movement import store as store
from nki.language.movement import transpose as transpose
from nki.language.movement import where as where
from nki.language.nki_object import NKIObject as NKIObject
from nki.language.programs import device_print as device_print
from nki.language.programs import ds as ds
from nki.language.programs import num_programs as num_programs
from nki.language.programs import program_id as program_id
from nki.language.programs import program_ndim as program_ndim
from nki.language.reductions import all as all
from nki.language.reductions import max as max
from nki.language.reductions import mean as mean
from nki.language.reductions import min as min
from nki.language.reductions import prod as prod
from nki.language.reductions import rms_norm as rms_norm
from nki.language.reductions import softmax as softmax
from nki.language.reductions import sum as sum
from nki.language.reductions import var as var
from nki.language.shared_constants import shared_constant as shared_constant
from nki.language.shared_constants import shared_identity_matrix as shared_identity_matrix
from nki.language.tile_size import _TileSize
from nki.machine.dtypes import DType as DType
from nki.machine.memories import MemoryRegion as MemoryRegion
from nki.machine.operators import Operator
from nki.typing import DTypeLike
from nki.typing import TileOrNumber
from types import SimpleNamespace

def abs(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the absolute value of x; element by element, in a new SBUF tile."""

def abs_max(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x if abs(x) > abs(y) else y (trn3); element by element, in a new SBUF tile."""

def abs_min(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x if abs(x) < abs(y) else y (trn3); element by element, in a new SBUF tile."""

def add(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x + y; element by element, in a new SBUF tile."""

def arctan(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the inverse tangent of x; element by element, in a new SBUF tile."""

average: Operator

bfloat16: DType

def bitwise_and(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x & y of integers; element by element, in a new SBUF tile."""

def bitwise_or(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x | y of integers; element by element, in a new SBUF tile."""

def bitwise_xor(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x ^ y of integers; element by element, in a new SBUF tile."""

bool: DType

bool_: DType

bypass: Operator

def ceil(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the smallest integer >= x; element by element, in a new SBUF tile."""

def copy(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x, in a new SBUF tile; bit by bit for equal dtypes; element by element, in a new SBUF tile."""

def cos(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the cosine of x, accurate everywhere; element by element, in a new SBUF tile."""

def divide(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x / y; element by element, in a new SBUF tile."""

def equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x == y, else 0; element by element, in a new SBUF tile."""

def erf(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the error function of x; element by element, in a new SBUF tile."""

def erf_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of erf; element by element, in a new SBUF tile."""

def exp(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """e to the power of x; element by element, in a new SBUF tile."""

float16: DType

float32: DType

float4_e2m1fn_x4: DType

float8_e4m3: DType

float8_e4m3fn: DType

float8_e4m3fn_x4: DType

float8_e5m2: DType

float8_e5m2_x4: DType

float8_e8m0fnu: DType

def floor(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the largest integer <= x; element by element, in a new SBUF tile."""

def fmod(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the remainder of x / y, with the sign of x; element by element, in a new SBUF tile."""

fp32: SimpleNamespace

def gelu(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * Phi(x), Phi the normal distribution; element by element, in a new SBUF tile."""

def gelu_apprx_sigmoid(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * sigmoid(1.702 x); element by element, in a new SBUF tile."""

def gelu_apprx_sigmoid_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of gelu_apprx_sigmoid; element by element, in a new SBUF tile."""

def gelu_apprx_tanh(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); element by element, in a new SBUF tile."""

def gelu_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of gelu; element by element, in a new SBUF tile."""

def greater(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x > y, else 0; element by element, in a new SBUF tile."""

def greater_equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x >= y, else 0; element by element, in a new SBUF tile."""

hbm: MemoryRegion

int16: DType

int32: DType

int8: DType

def invert(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x with every bit flipped, of integers; element by element, in a new SBUF tile."""

def left_shift(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x << y of integers; zeros enter, a count of the width or more gives 0; element by element, in a new SBUF tile."""

def less(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x < y, else 0; element by element, in a new SBUF tile."""

def less_equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x <= y, else 0; element by element, in a new SBUF tile."""

def log(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the natural logarithm of x; element by element, in a new SBUF tile."""

def logical_and(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x and y are both non-zero, else 0; element by element, in a new SBUF tile."""

def logical_not(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x xor 1 for integers, x == 0 for floats; element by element, in a new SBUF tile."""

def logical_or(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x or y is non-zero, else 0; element by element, in a new SBUF tile."""

def logical_xor(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where exactly one of x and y is non-zero, else 0; element by element, in a new SBUF tile."""

def maximum(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the larger of x and y; NaN if either is NaN; element by element, in a new SBUF tile."""

def minimum(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the smaller of x and y; NaN if either is NaN; element by element, in a new SBUF tile."""

def mish(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * tanh(softplus(x)); element by element, in a new SBUF tile."""

def mod(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the remainder of x / y, with the sign of y; element by element, in a new SBUF tile."""

def multiply(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * y; element by element, in a new SBUF tile."""

def ndarray(shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = ..., name: str | None = '', address: Sequence[Int] | None = None) -> NkiTensor:
    """A new tensor with undefined contents; `address=(partition, byte)` places a tile."""

def negative(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """-x; element by element, in a new SBUF tile."""

def not_equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x != y, else 0; element by element, in a new SBUF tile."""

def power(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x to the power of y; element by element, in a new SBUF tile."""

prelu: Operator

private_hbm: MemoryRegion

psum: MemoryRegion

def reciprocal(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 / x; element by element, in a new SBUF tile."""

def relu(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """max(x, 0); element by element, in a new SBUF tile."""

def right_shift(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x >> y of integers; zeros enter even for signed types; element by element, in a new SBUF tile."""

def rsqrt(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 / sqrt(x); x in SBUF; element by element, in a new SBUF tile."""

sbuf: MemoryRegion

shared_hbm: MemoryRegion

def sigmoid(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 / (1 + exp(-x)); element by element, in a new SBUF tile."""

def sign(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """-1, 0 or 1; element by element, in a new SBUF tile."""

def silu(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * sigmoid(x); element by element, in a new SBUF tile."""

def silu_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of silu; element by element, in a new SBUF tile."""

def sin(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the sine of x, accurate everywhere; element by element, in a new SBUF tile."""

def softplus(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """log(1 + exp(x)); element by element, in a new SBUF tile."""

def sqrt(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the square root of x; element by element, in a new SBUF tile."""

def square(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * x; element by element, in a new SBUF tile."""

def subtract(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x - y; element by element, in a new SBUF tile."""

def tan(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the tangent of x, accurate everywhere; element by element, in a new SBUF tile."""

def tanh(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the hyperbolic tangent of x; element by element, in a new SBUF tile."""

tfloat32: DType

tile_size: _TileSize

def trunc(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x without its fraction; element by element, in a new SBUF tile."""

uint16: DType

uint32: DType

uint8: DType
