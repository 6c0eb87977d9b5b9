"""NKIObject, the base class of objects used in kernels (spec/language.md 7)."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from typing import Any


class NKIObject:
    """Base of configuration classes used in kernels: keywords become attributes.

    A subclass with annotated fields is initialised like a dataclass: fields in order, their default (or None)
    for
    those left out, then `__post_init__`. `@dataclass` on top of it changes nothing of that.

    Members:

    - `is_nki_object`: True for objects that kernels take as configuration.

    Example:

    ```python
    class Config(nl.NKIObject):
        scale: float
        bias: float = 0.5

    print(Config(2.0))
    ```

    ```output
    Config(bias=0.5, scale=2.0)
    ```

    See also: `ndarray`.
    """

    is_nki_object = True

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        derived = any("InitVar" in str(a) for a in cls.__dict__.get("__annotations__", {}).values())
        if cls.__init__ is NKIObject.__init__ and not derived:
            cls.__init__ = NKIObject.__init__  # type: ignore[method-assign]  # @dataclass keeps a class's own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls: Any = type(self)
        fields = _fields(cls)
        if fields:
            kwargs = _bound(cls, fields, args, kwargs)
        elif args:
            raise TypeError(
                f"{type(self).__name__}() takes keywords only, got {len(args)} positional arguments"
            )
        for name, value in kwargs.items():
            object.__setattr__(self, name, value)  # of frozen dataclasses too
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({shown})"


# the documented signature; positional arguments are those of a subclass with fields
NKIObject.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)


@cache
def _fields(cls: type) -> dict[str, dataclasses.Field]:
    """Return the annotated fields of a class and its bases, in order of definition."""
    found: dict[str, dataclasses.Field] = {}
    for base in reversed(cls.__mro__):
        decorated = base.__dict__.get("__dataclass_fields__", {})
        for name, annotation in base.__dict__.get("__annotations__", {}).items():
            if "ClassVar" not in str(annotation):
                found[name] = decorated.get(name) or _described(getattr(cls, name, None))
    return found


def _described(value: Any) -> dataclasses.Field:
    """Return the field of a class attribute: what `dataclasses.field` made, or a plain default."""
    return value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)


def _bound(
    cls: type, fields: dict[str, dataclasses.Field], args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return a value for every field: positional, by keyword, its default, or None."""
    accepted = [name for name, field in fields.items() if field.init]
    if len(args) > len(accepted):
        raise TypeError(
            f"{cls.__name__}() takes {len(accepted)} arguments ({', '.join(accepted)}), got {len(args)}"
        )
    values = dict(zip(accepted, args, strict=False))
    for name, value in kwargs.items():
        if name in values:
            raise TypeError(f"{cls.__name__}() got multiple values for {name!r}")
        if name not in accepted and (name in fields or not hasattr(cls, name)):
            raise TypeError(f"{cls.__name__}() has no field {name!r}, its fields are {', '.join(accepted)}")
        values[name] = value
    return {name: _default(field) for name, field in fields.items() if name not in values} | values


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
