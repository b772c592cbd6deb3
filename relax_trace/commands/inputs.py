"""The inputs of a model to run: from a file, or random values of a given shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError

Array: TypeAlias = NDArray[Any]
SEED = 0
ANY = "?"  # an open dimension without a name


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function, or what the user wants for it, as far as that is known.

    In ``shape`` a string is the name of an open dimension, or ``ANY``.
    """

    name: str
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None

    def __str__(self) -> str:
        """``float32[1, batch]``, as the table would show it."""
        shape = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype or 'any dtype'}[{shape}]"


def parse_option(text: str) -> Parameter:
    """Read ``name=1,3,224,224:float32``; an empty shape is a scalar, the dtype may be left out.

    The name may itself hold ``=`` or ``:``. Raises ``ModelError`` for anything else.
    """
    name, _, rest = text.rpartition("=")
    numbers, _, dtype = rest.partition(":")
    try:
        shape = tuple(int(number) for number in numbers.split(",")) if numbers.strip() else ()
        if not name or any(size < 0 for size in shape):
            raise ValueError
        return Parameter(name, shape, numpy_dtype(dtype).name if dtype else None)
    except (ValueError, TypeError):
        raise ModelError(
            f"--input {text!r} is not name=shape[:dtype], as in x=1,3,224,224 or ids=1,16:int64"
        ) from None


def read_file(path: str) -> dict[str, Array]:
    """The arrays of an ``.npz`` by name. Raises ``ModelError`` for any other file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError:
        raise
    except Exception as error:  # numpy, zipfile and zlib each have their own
        raise ModelError(f"{path} is not an .npz file of arrays; numpy.savez writes one") from error


def make_inputs(
    parameters: Sequence[Parameter], options: Sequence[Parameter], given: Mapping[str, Array]
) -> list[Array]:
    """An array for each parameter, in order: the one given, else random values.

    Raises ``ModelError`` for an input that the function lacks, one that doesn't fit it, and a
    dimension that nothing says.
    """
    arrays = [Parameter(name, array.shape, array.dtype.name) for name, array in given.items()]
    wanted = _by_name(parameters, [*options, *arrays])
    sizes: dict[str, int] = {}  # of open dimensions: inputs may share one, such as the batch
    for parameter in parameters:
        if parameter.name in wanted:
            _bind(parameter, wanted[parameter.name], sizes)
    random = np.random.default_rng(SEED)
    return [
        given[parameter.name]
        if parameter.name in given
        else _random(random, _closed(wanted.get(parameter.name, parameter), parameter, sizes))
        for parameter in parameters
    ]


def _by_name(parameters: Sequence[Parameter], wanted: Sequence[Parameter]) -> dict[str, Parameter]:
    known = {parameter.name: parameter for parameter in parameters}
    found: dict[str, Parameter] = {}
    for asked in wanted:
        if asked.name not in known:
            has = ", ".join(known) or "none"
            raise ModelError(f"the model has no input {asked.name!r}; it has {has}")
        if asked.name in found:
            raise ModelError(f"input {asked.name!r} is given twice")
        found[asked.name] = replace(asked, dtype=asked.dtype or known[asked.name].dtype)
    return found


def _bind(parameter: Parameter, asked: Parameter, sizes: dict[str, int]) -> None:
    """Check that what is asked for fits the parameter, and note what sizes that gives."""
    expected = replace(parameter, shape=_filled(parameter, sizes))
    fits = parameter.dtype in (None, asked.dtype)
    if expected.shape is not None and asked.shape is not None:
        pairs = list(zip(expected.shape, asked.shape, strict=False))
        fits &= len(expected.shape) == len(asked.shape)
        fits &= all(isinstance(size, str) or size == value for size, value in pairs)
        sizes.update({size: int(value) for size, value in pairs if isinstance(size, str)})
    if not fits:
        raise ModelError(f"input {parameter.name!r} has to be {expected}; it was given {asked}")


def _filled(parameter: Parameter, sizes: Mapping[str, int]) -> tuple[int | str, ...] | None:
    """The shape with the sizes known by now."""
    if parameter.shape is None:
        return None
    return tuple(
        sizes.get(size, size) if isinstance(size, str) and size != ANY else size
        for size in parameter.shape
    )


def _closed(asked: Parameter, parameter: Parameter, sizes: Mapping[str, int]) -> Parameter:
    """``asked`` with all its dimensions known. Raises ``ModelError`` where nothing says one."""
    shape, name = _filled(asked, sizes), parameter.name
    if shape is None:
        raise ModelError(
            f"the shape of input {name!r} is unknown: add --input {name}=SHAPE[:DTYPE]"
        )
    still_open = [size for size in shape if isinstance(size, str)]
    if still_open:
        example = ",".join("1" if isinstance(size, str) else str(size) for size in shape)
        raise ModelError(
            f"input {name!r} is {parameter}, where {', '.join(still_open)} may be of any size: "
            f"add --input {name}={example} with the size you want"
        )
    return replace(asked, shape=shape)


def _random(random: np.random.Generator, parameter: Parameter) -> Array:
    shape = tuple(int(size) for size in parameter.shape or ())
    dtype = numpy_dtype(parameter.dtype or "float32")
    if dtype.kind in "iu":
        return np.asarray(random.integers(0, 10, shape)).astype(dtype)  # small: often an index
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    return np.asarray(random.random(shape)).astype(dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of that name, TVM's own (``bfloat16``, ``float8_e4m3fn``) included.

    Raises ``TypeError`` where there is none that holds numbers.
    """
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
    if dtype.hasobject or dtype.kind in "SUMmc" or dtype.names:
        raise TypeError(f"{name} does not hold numbers")
    return dtype
