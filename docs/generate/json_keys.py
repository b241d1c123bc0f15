"""The keys of what commands print with `--json`, as tables, from the commands' schemas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

from bfpp.options.schemas import schema_of

Schema = dict[str, Any]

_FURTHER = ("additionalProperties", "unevaluatedProperties")


class Key(NamedTuple):
    """A key by its path, such as `ranks[].start`: its type or unit, and what it means."""

    path: str
    kind: str
    meaning: str


def table(command: str) -> str:
    """All keys of a command's JSON, as Markdown."""
    rows = [f"| `{path}` | {kind} | {_text(meaning)} |" for path, kind, meaning in keys(command)]
    return "\n".join(["| key | type or unit | meaning |", "| --- | --- | --- |", *rows, ""])


def keys(command: str) -> list[Key]:
    """All keys of a command's JSON: those of objects that are alike once, in the first of them."""
    schema = schema_of(command)
    return list(_Page(schema).inside(schema, ""))


class _Page:
    """A schema, and where the objects that it refers to were listed first."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.listed: dict[str, str] = {}

    def inside(self, schema: Schema, path: str) -> Iterator[Key]:
        """The keys of an object; of alternatives, those that were not listed yet."""
        parts = list(self._parts(schema))
        for part in parts:
            for name, value in part.get("properties", {}).items():
                yield from self._key(f"{path}{name}", value)
        for each in schema.get("oneOf", []):
            if each.get("$ref") not in self.listed:
                yield from self.inside(each, path)
        for part in parts:
            for word in _FURTHER:
                if isinstance(part.get(word), dict):
                    yield from self._key(f"{path}NAME", part[word])

    def _key(self, path: str, schema: Schema) -> Iterator[Key]:
        kind, meaning = self._kind(schema), self._said("description", schema)
        place, value = path, schema
        while items := self._said("items", value):
            place, value = f"{place}[]", items
        first = self.listed.setdefault(value["$ref"], place) if "$ref" in value else place
        if first == place:
            yield Key(path, kind, meaning)
            yield from self.inside(value, f"{place}.")
        elif self._has_keys(value):
            yield Key(path, kind, f"{meaning} Keys as those of `{first}`.")
        else:
            yield Key(path, kind, meaning)

    def _has_keys(self, schema: Schema) -> bool:
        return any("properties" in part for part in self._parts(schema))

    def _parts(self, schema: Schema) -> Iterator[Schema]:
        """Parts of the schema: those that it refers to, and then its own."""
        if "$ref" in schema:
            names = schema["$ref"].removeprefix("#/").split("/")
            yield from self._parts(reduce(lambda each, name: each[name], names, self.schema))
        for word in ("allOf", "anyOf"):
            for each in schema.get(word, []):
                yield from self._parts(each)
        yield schema

    def _said(self, word: str, schema: Schema) -> Any:
        """The schema's value of a keyword: its own comes before one that it refers to."""
        said = [each[word] for each in self._parts(schema) if each.get(word)]
        return said[-1] if said else ""

    def _kind(self, schema: Schema) -> str:
        """The unit, or the types, or the values themselves."""
        if title := self._said("title", schema):
            return str(title)
        found: list[str] = []
        for part in self._parts(schema):
            found += [f"`{each}`" for each in part.get("enum", [])]
            found += [f"`{part['const']}`"] if "const" in part else []
            types = part.get("type", [])
            found += [types] if isinstance(types, str) else types
        return " or ".join(dict.fromkeys(found)) or "any"


def _text(meaning: str) -> str:
    return meaning.replace("|", "\\|").replace("<", "&lt;")
