"""Random statements that change the columns or the form of a table."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from spark.statements.columns import (
    CHECKED,
    CHECKS,
    SCALARS,
    VARIANT,
    WIDER,
    Column,
    Items,
    ddl_in_reference,
    ddl_in_spark,
    first_columns,
    random_form,
    scalars_of,
)
from spark.statements.grammar import Grammar, Statement, Target

NAMES = ("c1", "c2", "c3", "n", "s", "x")
FIELDS = ("a", "b", "f", "g")


def altered(rng: Random, target: Target) -> Statement | None:
    """A change of columns, or of fields in a struct; None where the chosen kind finds nothing to change."""
    kinds: list[Callable[[Random, Target], Statement | None]] = [_add, _add, _rename, _drop, _widen]
    kinds += [_add_field, _rename_field, _drop_field, _widen_field, _default, _default]
    kinds += [_evolving_merge, _evolving_merge, _evolving_insert, _evolving_insert, _widening_merge]
    kinds += [_add_check, _add_check, _drop_check, _repartition, _repartition]
    return rng.choice(kinds)(rng, target)


def _loose(target: Target) -> list[Column]:
    fixed = target.form.fixed | set(target.form.key)
    return [c for c in target.columns if c.name not in fixed]


def _with(target: Target, old: Column, new: Column | None) -> tuple[Column, ...]:
    found = (new if column is old else column for column in target.columns)
    return tuple(column for column in found if column is not None)


def _alter(kind: str, in_spark: str, in_reference: str, columns: tuple[Column, ...]) -> Statement:
    """A default is changed alone: the rows of others would have it or not, by the moment at which they came."""
    texts = (f"ALTER TABLE {{t}} {in_spark}", (f"ALTER TABLE {{t}} {in_reference}",))
    return Statement(f"ALTER {kind}", *texts, columns=columns, alone="DEFAULT" in kind)


def _free(rng: Random, taken: list[str], names: tuple[str, ...]) -> str | None:
    free = [name for name in names if name not in taken]
    return rng.choice(free) if free else None


def _add(rng: Random, target: Target) -> Statement | None:
    name = _free(rng, target.names, NAMES)
    if name is None or len(target.columns) > 8:
        return None
    new = Column(name, rng.choice(scalars_of(target.form)))
    in_spark, in_reference = f"ADD COLUMNS ({name} {new.kind})", f"ADD COLUMN {name} {new.type_in_reference()}"
    return _alter("ADD COLUMN", in_spark, in_reference, (*target.columns, new))


def _rename(rng: Random, target: Target) -> Statement | None:
    name, loose = _free(rng, target.names, NAMES), _loose(target)
    if name is None or not loose:
        return None
    old = rng.choice(loose)
    text = f"RENAME COLUMN {old.name} TO {name}"
    return _alter("RENAME COLUMN", text, text, _with(target, old, replace(old, name=name)))


def _drop(rng: Random, target: Target) -> Statement | None:
    loose = _loose(target)
    if len(loose) < 3:
        return None
    old = rng.choice(loose)
    text = f"DROP COLUMN {old.name}"
    return _alter("DROP COLUMN", text, text, _with(target, old, None))


def _widen(rng: Random, target: Target) -> Statement | None:
    narrow = [c for c in _loose(target) if c.kind in WIDER]
    if not narrow:
        return None
    old = rng.choice(narrow)
    wider = WIDER[str(old.kind)]
    text = f"ALTER COLUMN {old.name} TYPE {wider}"
    return _alter("widen COLUMN", text, text, _with(target, old, replace(old, kind=wider)))


def _default(rng: Random, target: Target) -> Statement | None:
    plain = [c for c in _loose(target) if c.kind in ("INT", "BIGINT", "STRING", "DATE")]
    if not plain:
        return None
    old = rng.choice(plain)
    if old.default is not None and rng.random() < 0.5:
        text = f"ALTER COLUMN {old.name} DROP DEFAULT"
        return _alter("DROP DEFAULT", text, text, _with(target, old, replace(old, default=None)))
    default = {"STRING": "'d'", "DATE": "DATE '2024-02-29'"}.get(str(old.kind), str(rng.randrange(20, 30)))
    text, kind = f"ALTER COLUMN {old.name} SET DEFAULT ", "SET DEFAULT"
    in_spark = default
    if old.kind in ("STRING", "DATE") and rng.random() < 0.4:
        in_spark, kind = "current_user()" if old.kind == "STRING" else "current_date()", "SET DEFAULT to a function"
        default = f"'{getpass.getuser()}'" if old.kind == "STRING" else f"DATE '{dt.date.today()}'"  # noqa: DTZ011 - as Spark's
    return _alter(kind, text + in_spark, text + default, _with(target, old, replace(old, default=default)))


def _outer(rng: Random, target: Target) -> tuple[Column, str] | None:
    """A column with fields, and the path to them in Spark."""
    found = [c for c in target.columns if c.fields]
    if not found:
        return None
    column = rng.choice(found)
    return column, f"{column.name}.element" if isinstance(column.kind, Items) else column.name


def _alter_field(
    kind: str, target: Target, column: Column, fields: Mapping[Column, str | None], in_spark: str, in_reference: str
) -> Statement:
    """``fields`` are those afterwards, with the name that each had before."""
    changed = column.with_fields(list(fields))
    if isinstance(column.kind, Items):
        parts = (f"{f.name} := CAST({_of_item(old)} AS {f.kind})" for f, old in fields.items())
        item = f"CASE WHEN x IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"
        in_reference = f"ALTER COLUMN {column.name} SET DATA TYPE {changed.type_in_reference()}"
        in_reference += f" USING list_transform({column.name}, lambda x: {item})"
        kind += " of a list"
    return _alter(kind, in_spark, in_reference, _with(target, column, changed))


def _of_item(name: str | None) -> str:
    return "NULL" if name is None else f"struct_extract(x, '{name}')"


def _add_field(rng: Random, target: Target) -> Statement | None:
    if (found := _outer(rng, target)) is None or (name := _free_field(rng, found[0])) is None:
        return None
    column, path = found
    new = Column(name, rng.choice(SCALARS))
    fields = {**{f: f.name for f in column.fields}, new: None}
    in_spark, in_reference = f"ADD COLUMNS ({path}.{name} {new.kind})", f"ADD COLUMN {path}.{name} {new.kind}"
    return _alter_field("ADD field", target, column, fields, in_spark, in_reference)


def _rename_field(rng: Random, target: Target) -> Statement | None:
    if (found := _outer(rng, target)) is None or (name := _free_field(rng, found[0])) is None:
        return None
    column, path = found
    old = rng.choice(column.fields)
    fields = {replace(f, name=name) if f is old else f: f.name for f in column.fields}
    text = f"RENAME COLUMN {path}.{old.name} TO {name}"
    return _alter_field("RENAME field", target, column, fields, text, text)


def _drop_field(rng: Random, target: Target) -> Statement | None:
    if (found := _outer(rng, target)) is None or len(found[0].fields) < 2:
        return None
    column, path = found
    old = rng.choice(column.fields)
    text = f"DROP COLUMN {path}.{old.name}"
    fields = {f: f.name for f in column.fields if f is not old}
    return _alter_field("DROP field", target, column, fields, text, text)


def _widen_field(rng: Random, target: Target) -> Statement | None:
    found = _outer(rng, target)
    narrow = [] if found is None else [f for f in found[0].fields if f.kind in WIDER]
    if found is None or not narrow:
        return None
    column, path = found
    old = rng.choice(narrow)
    wider = WIDER[str(old.kind)]
    fields = {replace(f, kind=wider) if f is old else f: f.name for f in column.fields}
    in_spark = f"ALTER COLUMN {path}.{old.name} TYPE {wider}"
    in_reference = f"ALTER COLUMN {path} TYPE {column.with_fields(list(fields)).type_in_reference()}"
    return _alter_field("widen field", target, column, fields, in_spark, in_reference)


def _free_field(rng: Random, column: Column) -> str | None:
    return _free(rng, [field.name for field in column.fields], FIELDS)


def _evolving_merge(rng: Random, target: Target) -> Statement | None:
    name = _free(rng, target.names, NAMES)
    if name is None or not target.takes_stars:
        return None
    new = Column(name, rng.choice(scalars_of(target.form)))
    columns = (*target.columns, new)
    source = Grammar(rng, target, guarded=False).values(columns, rng.randint(1, 6))
    on = " AND ".join(f"t.{key} = s.{key}" for key in target.form.key or ("id",))
    names, values = ", ".join(c.name for c in columns), ", ".join(f"s.{c.name}" for c in columns)
    sets = ", ".join(f"{c.name} = s.{c.name}" for c in columns)
    merge = f"INTO {{t}} AS t USING ({source}) AS s ON {on} WHEN MATCHED THEN UPDATE SET"
    adding = f"ALTER TABLE {{t}} ADD COLUMN {name} {new.type_in_reference()}"
    return Statement(
        "MERGE WITH SCHEMA EVOLUTION",
        f"MERGE WITH SCHEMA EVOLUTION {merge} * WHEN NOT MATCHED THEN INSERT *",
        (adding, f"MERGE {merge} {sets} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"),
        columns=columns,
        staying=adding,
        alone=True,
    )


def _widening_merge(rng: Random, target: Target) -> Statement | None:
    """A source whose type is wider than that of the column."""
    narrow = [c for c in _loose(target) if c.kind in WIDER and c.name not in target.form.key]
    if not narrow:
        return None
    old = rng.choice(narrow)
    new = replace(old, kind=WIDER[str(old.kind)])
    key = [c for c in target.columns if c.name in (target.form.key or ("id",))]
    source = Grammar(rng, target, guarded=False).values([*key, new], rng.randint(1, 6))
    on = " AND ".join(f"t.{c.name} = s.{c.name}" for c in key)
    merge = f"INTO {{t}} AS t USING ({source}) AS s ON {on} WHEN MATCHED THEN UPDATE SET {new.name} = s.{new.name}"
    widening = f"ALTER TABLE {{t}} ALTER COLUMN {new.name} TYPE {new.kind}"
    return Statement(
        "MERGE WITH SCHEMA EVOLUTION, wider",
        f"MERGE WITH SCHEMA EVOLUTION {merge}",
        (widening, f"MERGE {merge}"),
        columns=_with(target, old, new),
        staying=widening,
        alone=True,
    )


def _evolving_insert(rng: Random, target: Target) -> Statement | None:
    """Rows with a column more, whose name no column ever had, as mergeSchema wants it."""
    new = Column(f"m{rng.randrange(100_000)}", rng.choice(scalars_of(target.form)))
    if len(target.columns) > 9:
        return None
    grammar = Grammar(rng, target, guarded=False)
    some = [c for c in target.columns if c.name in ("id", "day") or rng.random() < 0.6]
    query = grammar.values([*some, new], rng.randint(1, 6))
    way = rng.choice(["sql", "mergeSchema"])
    text = query if way == "mergeSchema" else f"INSERT WITH SCHEMA EVOLUTION INTO {{t}} BY NAME {query}"
    adding = f"ALTER TABLE {{t}} ADD COLUMN {new.name} {new.type_in_reference()}"
    return Statement(
        "INSERT WITH SCHEMA EVOLUTION" if way == "sql" else way,
        text,
        (adding, *grammar.loaded(query)),
        way=way,
        columns=(*target.columns, new),
        staying=adding,
        alone=True,
    )


def _add_check(rng: Random, target: Target) -> Statement | None:
    """A constraint on columns that are there; rows that others add, which have defaults, keep it."""
    kinds = {c.name: c for c in target.columns if c.default in (None, "'d'") or c.kind == "INT"}
    possible = [
        condition
        for condition in CHECKS
        if all(name in kinds and kinds[name].kind in CHECKED[name] for name in CHECKED if _names(name, condition))
    ]
    if not possible or len(target.form.checks) > 2:
        return None
    name, condition = f"c{rng.randrange(100_000)}", rng.choice(possible)
    form = replace(target.form, checks=(*target.form.checks, (name, condition)))
    text = f"ALTER TABLE {{t}} ADD CONSTRAINT {name} CHECK ({condition})"
    return Statement("ADD CONSTRAINT", text, (), reform=form)


def _names(name: str, condition: str) -> bool:
    return re.search(rf"\b{name}\b", condition) is not None


def _drop_check(rng: Random, target: Target) -> Statement | None:
    if not target.form.checks:
        return None
    gone = rng.choice(target.form.checks)
    form = replace(target.form, checks=tuple(check for check in target.form.checks if check is not gone))
    return Statement("DROP CONSTRAINT", f"ALTER TABLE {{t}} DROP CONSTRAINT {gone[0]}", (), reform=form)


def _repartition(rng: Random, target: Target) -> Statement | None:
    if target.form.lake != "iceberg":
        return None
    kinds = {"s": "STRING", "d": "DATE"}
    right = {c.name for c in target.columns if c.kind == kinds.get(c.name, c.kind)}
    possible = [p for p in target.form.other_partitions() if all(n in right for n in kinds if _names(n, p or ""))]
    wanted = rng.choice(possible)
    if wanted == target.form.partition:
        return None
    fields = re.split(r", (?![^(]*\))", wanted) if wanted else []
    form = replace(target.form, partition=wanted, former=(*target.form.former, target.form.partition or ""))
    way = rng.choice(["sql", "set_partitioning"])
    text = f"CALL streamhouse.system.set_partitioning(table => '{{name}}', partitioning => '{wanted or ''}')"
    return Statement("set_partitioning", text, (), way=way, where=json.dumps(fields), reform=form)


def replaced(rng: Random, target: Target) -> Statement:
    """Another table takes the place: an empty one, or one of chosen columns of the old one's rows."""
    if rng.random() < 0.5:
        form = random_form(rng)
        columns = first_columns(form)
        model = f"CREATE OR REPLACE TABLE {{t}} ({ddl_in_reference(columns)})"
        text = f"CREATE OR REPLACE TABLE {{t}} {ddl_in_spark(columns, form)}"
        return Statement("CREATE OR REPLACE", text, (model,), columns=tuple(columns), form=form, alone=True)
    form = random_form(rng, "iceberg", keyed=False)
    form = replace(form, partition=form.partition if form.partition == "day" else None, extra=(), checks=())
    columns = [c for c in target.columns if not c.is_identity and c.kind != VARIANT]
    kept = [c for c in columns if c.name in ("id", "day") or (c.name != "made" and rng.random() < 0.6)]
    new = Column("made", "INT")
    of = Grammar(rng, target, guarded=False).of("o.")
    chosen = ", ".join(f"o.{c.name}" for c in kept)
    query = f"SELECT {chosen}, {rng.randrange(9)} AS made FROM {{own}} AS o WHERE {of.condition()}"
    return Statement(
        "CREATE OR REPLACE AS, other columns",
        f"CREATE OR REPLACE TABLE {{t}}{form.clauses()} AS {query}",
        (f"CREATE OR REPLACE TABLE {{t}} AS {query}",),
        columns=(*(replace(c, required=False, default=None, generated=None) for c in kept), new),
        form=form,
        alone=True,
    )
