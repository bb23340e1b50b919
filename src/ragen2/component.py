"""Component: settings plus behaviour in one frozen class, found by its ``kind``.

A family (environments, filters, algorithms, diagnostics) is a subclass that sets ``family``; a member
is a subclass of the family with a literal ``kind``. Defining the class is all it takes to register it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticUserError,
    ValidationError,
    model_serializer,
    model_validator,
)

from ragen2.errors import ConfigError, RagenError, told

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PLUGIN_ENTRY_POINT = "ragen2.plugins"
LONGEST_VALUE = 200
"""Characters that an error shows of a value."""
_LOG = logging.getLogger(__name__)


class Settings(BaseModel):
    """Frozen, validated settings; an unknown name is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


class UnknownKind(ConfigError):
    """No member of a family has this kind, as far as is imported."""


class Component(Settings):
    """A piece of a run that a run file can name by ``kind``."""

    family: ClassVar[str] = ""
    registry: ClassVar[dict[str, type[Component]]] = {}
    is_checked: ClassVar[bool] = True
    """False for one that stands in for a kind of a plug-in that was not imported."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Settings by the names they once had, with their names now; old names are still read."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, data: Any) -> Any:
        old_names = [old for old in cls.renamed if isinstance(data, Mapping) and old in data]
        if not old_names:
            return data
        settings = dict(data)
        for old in old_names:
            new = cls.renamed[old]
            if new in settings:
                raise ValueError(f"{old} is the old name of {new}; remove {old}")
            settings[new] = settings.pop(old)
            _LOG.warning(
                "%s: %s is now called %s; the old name is still read", cls.__name__, old, new
            )
        return settings

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "family" in cls.__dict__:
            cls.registry = {}
            return
        kind = cls.model_fields["kind"].default if "kind" in cls.model_fields else None
        if not isinstance(kind, str):
            return
        known = cls.registry.get(kind)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise ConfigError(
                f"{cls.family} kind {kind!r} is defined twice: {known.__module__}.{known.__qualname__} "
                f"and {cls.__module__}.{cls.__qualname__}; rename one"
            )
        cls.registry[kind] = cls

    @classmethod
    def kinds(cls) -> list[str]:
        """Names of all registered members of this family."""
        return sorted(cls.registry)

    @classmethod
    def find(cls, kind: str) -> type[Self]:
        """The member called ``kind`` (case does not matter), or an error that suggests one."""
        folded = {name.lower(): member for name, member in cls.registry.items()}
        member = folded.get(kind.lower())
        if member is None:
            raise UnknownKind(f"unknown {cls.family} kind {kind!r}; {suggest(kind, cls.kinds())}")
        return member  # type: ignore[return-value]  # the registry of a family holds only its members

    @classmethod
    def _lacking(cls) -> list[str]:
        """Methods and class constants that the family asks for and this member does not define."""
        constants = [name for name in cls.__class_vars__ if not hasattr(cls, name)]
        return sorted({*cls.__abstractmethods__, *constants})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str = "") -> Self:
        """Build the member that ``data["kind"]`` names; all mistakes are reported at once."""
        kind = data.get("kind")
        if not isinstance(kind, str):
            raise ConfigError(f"{path or cls.family} needs a kind; known: {', '.join(cls.kinds())}")
        member = cls.find(kind)
        if lacking := member._lacking():
            raise ConfigError(
                f"{cls.family} kind {kind!r} lacks {', '.join(lacking)}; "
                f"define {'it' if len(lacking) == 1 else 'them'} in class {member.__qualname__}"
            )
        settings = {name: value for name, value in data.items() if name != "kind"}
        try:
            return member.model_validate(settings)
        except ValidationError as error:
            raise ConfigError("\n".join(explain(error, member, path))) from error
        except (RagenError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if is_ours(member):
                raise
            raise ConfigError(
                f"{cls.family} kind {kind!r} cannot be built: {told(error)}"
            ) from error

    @classmethod
    def stand_in(cls, data: Mapping[str, Any]) -> Self:
        """A member that keeps the settings of an unknown kind as they are, and can do nothing else."""

        class StandIn(cls):  # type: ignore[valid-type, misc]  # a subclass of whichever family this is
            model_config = ConfigDict(extra="allow")
            is_checked = False

            @model_serializer
            def _as_given(self) -> dict[str, Any]:
                return dict(data)

        StandIn.__abstractmethods__ = frozenset()
        made: Self = StandIn.model_construct(**data)
        return made


def is_ours(member: type[Component]) -> bool:
    """Whether a component is part of the package: what goes wrong in it is a mistake of ours."""
    return member.__module__.partition(".")[0] == __name__.partition(".")[0]


def suggest(word: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` when something is near, else the list of what there is."""
    names = sorted(known)
    if not names:
        return "remove it"
    near = difflib.get_close_matches(
        word.lower(), [name.lower() for name in names], n=1, cutoff=0.6
    )
    if near:
        original = next(name for name in names if name.lower() == near[0])
        return f"did you mean {original!r}?"
    return f"known: {', '.join(names)}"


def explain(error: ValidationError, model: type[BaseModel], path: str = "") -> list[str]:
    """One line per mistake: the setting by its path, what is allowed, what was found."""
    return [_explain_one(detail, model, path) for detail in error.errors()]


def _explain_one(detail: ErrorDetails, model: type[BaseModel], path: str) -> str:
    loc = [str(part) for part in detail["loc"]]
    name = ".".join([path, *loc] if path else loc)
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {name}; {suggest(loc[-1], _fields_at(model, loc[:-1]))}"
    if detail["type"] == "missing":
        return f"{name} is missing; give it a value"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.removeprefix("Input should be ").replace("a valid tuple", "a list")
    if detail["type"] == "value_error":
        return f"{name}: {message}"
    return f"{name} must be {message}, got {shortened(detail['input'])}"


def shortened(value: object) -> str:
    """A value as it was found, in a length that can be read; one that cannot be shown, by its type."""
    try:
        shown = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return f"a value of type {type(value).__name__}"
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}..."


def _fields_at(model: type[BaseModel], loc: list[str]) -> list[str]:
    for part in loc:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return [name for name in model.model_fields if name != "kind"]


PLUGIN_FILES: set[Path] = set()
"""Files that were imported as plug-ins."""


class _SourceLoader(SourceFileLoader):
    """Runs the file that the user has seen: a compiled copy beside it may hold anything."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def load_plugin(name: str) -> None:
    """Import a module by name, or a file by path, so that its components register themselves."""
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"plugin file {name} does not exist; give a path to a .py file")
        module_name = f"ragen2_plugin_{path.stem}"
        if module_name in sys.modules and sys.modules[module_name].__file__ == str(path.resolve()):
            return
        file = str(path.resolve())
        loader = _SourceLoader(module_name, file)
        spec = importlib.util.spec_from_file_location(module_name, file, loader=loader)
        if spec is None or spec.loader is None:
            raise ConfigError(f"plugin file {name} cannot be imported as Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        PLUGIN_FILES.add(Path(file))
        try:
            with _importing(f"plugin file {name}"):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]  # a plug-in that failed must not pass for loaded next time
            raise
        return
    with _importing(f"plugin {name!r}", "; give an installed module or a .py path"):
        module = importlib.import_module(name)
    PLUGIN_FILES.add(Path(str(module.__file__)))


@contextmanager
def _importing(plugin: str, cure: str = "") -> Iterator[None]:
    """Whatever a plug-in raises while it is imported, ``SystemExit`` included, is one line."""
    try:
        yield
    except (RagenError, KeyboardInterrupt):
        raise
    except (SyntaxError, ImportError, PydanticUserError) as error:
        message = " ".join(str(error).partition("\n")[0].split())
        raise ConfigError(f"{plugin} cannot be imported: {message}{cure}") from error
    except BaseException as error:
        raise ConfigError(f"{plugin} cannot be imported: {told(error)}{cure}") from error


def installed_plugins() -> importlib.metadata.EntryPoints:
    """Every plug-in that installed packages announce under ``ragen2.plugins``; none is imported."""
    return importlib.metadata.entry_points(group=PLUGIN_ENTRY_POINT)


def load_installed_plugins() -> None:
    """Import every one of them."""
    for entry in installed_plugins():
        with _importing(f"installed plugin {entry.name}", "; mend it or uninstall its package"):
            entry.load()
