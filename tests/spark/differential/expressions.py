"""Random scalar expressions and filters over the columns of the subjects, as SQL text that never fails at run time."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable

from spark.differential.dataset import BYTES, FIRST_DAY, FIRST_MOMENT, KEYS, PARTITIONS, WORDS

NUMBERS = ("k", "n", "t", "m", "big", "st.a", "f", "d", "st.c.x")
FAMILIES = {
    "integer": ("k", "n", "t", "st.a", "extra"),
    "float": ("f", "d", "st.c.x"),
    "decimal": ("m", "big"),
    "string": ("s", "p", "st.b"),
    "binary": ("b",),
    "boolean": ("flag",),
    "date": ("day",),
    "timestamp": ("ts", "st.c.y"),
    "timestamp_ntz": ("wall",),
}
FAMILY_OF = {column: family for family, columns in FAMILIES.items() for column in columns}
NESTED = ("arr", "mp", "st")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "+05:45")


def text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\x00", "\\0") + "'"


class Expressions:
    """Expressions of one relation in a query; ``prefix`` is its alias with a dot, or nothing."""

    def __init__(
        self, rng: random.Random, prefix: str = "", *, has_extra: bool = False, has_place: bool = False
    ) -> None:
        self.rng = rng
        self.prefix = prefix
        self._has_extra = has_extra
        self._has_place = has_place

    # -- columns --------------------------------------------------------------------------------------------------

    def column(self, *families: str) -> str:
        """A column's name without prefix."""
        chosen = self.rng.choice(families or tuple(FAMILIES))
        names = [name for name in FAMILIES[chosen] if name != "extra" or self._has_extra]
        return self.rng.choice(names)

    def ref(self, name: str) -> str:
        return self.prefix + name

    # -- literals -------------------------------------------------------------------------------------------------

    def literal(self, name: str) -> str:
        """A value to compare the column with: often one that it has, sometimes of another type or scale."""
        if self.rng.random() < 0.03:
            return "NULL"
        literals: dict[str, Callable[[], str]] = {
            "integer": self._integer,
            "float": self._float,
            "decimal": self._decimal,
            "string": lambda: text(self._word()),
            "binary": lambda: f"X'{self.rng.choice(BYTES).hex()}'",
            "boolean": lambda: self.rng.choice(["TRUE", "FALSE"]),
            "date": self._date,
            "timestamp": self._timestamp,
            "timestamp_ntz": lambda: f"TIMESTAMP_NTZ'{self._moment()}'",
        }
        return literals[FAMILY_OF[name]]()

    def _integer(self) -> str:
        number = self.rng.choice(
            [self.rng.randrange(-2, 12), self.rng.randrange(KEYS), self.rng.randrange(95), 127, -128]
        )
        return self.rng.choice([f"{number}", f"{number}", f"{number}L", f"{number}.0", f"{number}.5", f"{number}D"])

    def _float(self) -> str:
        special = ["DOUBLE('NaN')", "FLOAT('NaN')", "DOUBLE('Infinity')", "DOUBLE('-Infinity')", "0.0D", "-0.0D", "0"]
        numbers = [
            "1.5D",
            "-2.25D",
            "1e6D",
            "0.1D",
            "FLOAT(0.1)",
            f"{self.rng.randrange(9)}.25D",
            f"{self.rng.randrange(9)}",
        ]
        return self.rng.choice(special + numbers)

    def _decimal(self) -> str:
        unscaled = self.rng.randrange(-300, 1800)
        forms = [
            f"{unscaled / 100:.2f}",
            f"{unscaled / 100:.1f}",
            f"{unscaled / 100:.4f}",
            f"{unscaled // 100}",
            "0.000005",
        ]
        return self.rng.choice([*forms, f"{unscaled / 1e8:.8f}", "-0.00000001", "1e3", f"{unscaled}.125D"])

    def _word(self) -> str:
        return self.rng.choice([*WORDS, *PARTITIONS, f"w{self.rng.randrange(9)}{self.rng.choice('abc')}", "w3", "zzz"])

    def _date(self) -> str:
        day = FIRST_DAY + dt.timedelta(days=self.rng.randrange(-1, 12))
        return self.rng.choice(
            [f"DATE'{day}'", f"DATE'{day}'", f"'{day}'", f"TIMESTAMP'{day} 12:00:00'", f"TIMESTAMP_NTZ'{day}'"]
        )

    def _moment(self) -> str:
        moment = FIRST_MOMENT + dt.timedelta(
            minutes=30 * self.rng.randrange(140), microseconds=self.rng.choice([0, 0, 1])
        )
        return str(moment)

    def _timestamp(self) -> str:
        moment = self._moment()
        forms = [f"TIMESTAMP'{moment}'", f"TIMESTAMP'{moment} {self.rng.choice(ZONES)}'", f"DATE'{moment[:10]}'"]
        return self.rng.choice([*forms, f"TIMESTAMP_NTZ'{moment}'", f"'{moment}'"])

    # -- filters --------------------------------------------------------------------------------------------------

    def filter(self, depth: int = 2) -> str:
        if depth > 0 and self.rng.random() < 0.6:
            left, right = self.filter(depth - 1), self.filter(depth - 1)
            return self.rng.choice(
                [
                    f"({left} AND {right})",
                    f"({left} OR {right})",
                    f"NOT ({left} OR {right})",
                    f"(NOT {left} AND {right})",
                    f"NOT ({left} AND {right})",
                    f"(({left}) <=> ({right}))",
                    f"({left} = TRUE AND {right} IS NOT NULL)",
                ]
                if self.rng.random() < 0.7
                else [f"({left} AND {right})"]
            )
        leaf = self.rng.choices(
            [self._comparison, self._in, self._null, self._like, self._boolean, self._pair, self._odd, self._place],
            [8, 3, 3, 3, 2, 2, 2, 1],
        )[0]
        text = leaf()
        return (
            text if text in (self.ref("flag"), "TRUE") else f"({text})"
        )  # WHERE (flag) names columns of a table called WHERE

    def _comparison(self) -> str:
        name = self.column()
        operator = self.rng.choice(COMPARISONS)
        column, value = self.ref(name), self.literal(name)
        if self.rng.random() < 0.15:
            return f"{column} {self.rng.choice(['', 'NOT '])}BETWEEN {value} AND {self.literal(name)}"
        return f"{value} {operator} {column}" if self.rng.random() < 0.2 else f"{column} {operator} {value}"

    def _in(self) -> str:
        name = self.rng.choice([self.column(), "k", "p", "s", "day"])
        values = [self.literal(name) for _ in range(self.rng.choice([1, 2, 3, 15]))]
        if name == "k":
            values = [str(self.rng.randrange(KEYS)) for _ in values]
        if self.rng.random() < 0.15:
            values.append("NULL")
        return f"{self.ref(name)} {self.rng.choice(['', '', 'NOT '])}IN ({', '.join(values)})"

    def _null(self) -> str:
        name = self.rng.choice([self.column(), self.rng.choice(NESTED)])
        return f"{self.ref(name)} IS {self.rng.choice(['', 'NOT '])}NULL"

    def _like(self) -> str:
        name = self.column("string")
        part = self._word().replace("\\", "").replace("%", "").replace("_", "").replace("\x00", "")
        part = part[: self.rng.choice([1, 2, 9])]
        pattern = self.rng.choice(
            [f"{part}%", f"%{part}", f"%{part}%", part, f"{part[:1]}_%", f"{part[:1]}%{part[1:]}"]
        )
        if self.rng.random() < 0.25:
            function = self.rng.choice(["startswith", "endswith", "contains"])
            return f"{function}({self.ref(name)}, {text(part)})"
        return f"{self.ref(name)} {self.rng.choice(['', 'NOT '])}LIKE {text(pattern)}"

    def _boolean(self) -> str:
        flag = self.ref("flag")
        return self.rng.choice(
            [flag, f"NOT {flag}", f"{flag} IS TRUE", f"{flag} IS NOT FALSE", "TRUE", f"{flag} <=> NULL"]
        )

    def _pair(self) -> str:
        """Two columns with one another."""
        families = self.rng.choice(
            [("integer", "float", "decimal"), ("string",), ("date", "timestamp", "timestamp_ntz")]
        )
        left, right = self.ref(self.column(*families)), self.ref(self.column(*families))
        return f"{left} {self.rng.choice(COMPARISONS)} {right}"

    def _odd(self) -> str:
        """Make a condition that is not pushed, or only in part."""
        c = self.ref
        return self.rng.choice(
            [
                f"length({c('s')}) > {self.rng.randrange(4)}",
                f"{c('n')} % 3 = {self.rng.randrange(3)}",
                f"year({c('day')}) = 2024 AND dayofmonth({c('day')}) > {self.rng.randrange(8, 16)}",
                f"CAST({c('ts')} AS DATE) = {self._date()}",
                f"date_trunc('hour', {c('ts')}) >= TIMESTAMP'{self._moment()}'",
                f"{c('arr')}[0] = 1"
                if self.rng.random() < 0
                else f"array_contains({c('arr')}, {self.rng.randrange(5)})",
                f"element_at({c('mp')}, 'x') > {self.rng.randrange(9)}",
                f"coalesce({c('n')}, {c('t')}, 0) > {self.rng.randrange(30)}",
                f"CASE WHEN {c('flag')} THEN {c('n')} > 20 WHEN {c('s')} IS NULL THEN TRUE ELSE {c('d')} < 3 END",
                f"isnan({c('d')})",
                f"{c('k')} + 1 = {self.rng.randrange(KEYS)}",
                f"CAST({c('k')} AS STRING) = '{self.rng.randrange(KEYS)}'",
                f"nullif({c('p')}, 'north') IS NULL",
                f"{c('st')}.c.x > 0 OR {c('st')}.b LIKE 'a%'",
                f"upper({c('p')}) IN ('NORTH', '')",
            ]
        )

    def _place(self) -> str:
        if not self._has_place:
            return self._null()
        return self.rng.choice(
            [
                f"{self.ref('_bucket')} {self.rng.choice(COMPARISONS)} {self.rng.randrange(4)}",
                f"{self.ref('_log_offset')} {self.rng.choice(COMPARISONS)} {self.rng.randrange(60)}",
                f"{self.ref('_bucket')} IN (1, {self.rng.randrange(4)})",
            ]
        )

    # -- what a row of the answer has -----------------------------------------------------------------------------

    def scalar(self) -> str:
        """An expression of an orderable type."""
        c = self.ref
        name = self.column()
        if self.rng.random() < 0.6:
            return c(name)
        return self.rng.choice(
            [
                f"try_add({c(self.column('integer'))}, {self._integer()})",
                f"{c(self.column('decimal'))} * 2",
                f"{c(self.column('decimal'))} + {c('n')}",
                f"concat({c('s')}, '|', {c('p')})",
                f"substr({c('s')}, 1, 2)",
                f"CAST({c('ts')} AS STRING)",
                f"CAST({c('wall')} AS DATE)",
                f"hour({c('ts')})",
                f"datediff({c('day')}, DATE'2024-03-01')",
                f"coalesce({c('s')}, {c('p')}, 'none')",
                f"{c('d')} * 2",
                f"CAST({c('f')} AS DOUBLE)",
                f"size({c('arr')})",
                f"hex({c('b')})",
                f"{c('st')}.c.x",
                f"({self.filter(1)})",
                f"CASE WHEN {self.filter(0)} THEN 'yes' ELSE {c('s')} END",
                *([c("_bucket"), c("_log_offset")] if self._has_place else []),
            ]
        )

    def value(self) -> str:
        """Any expression."""
        if self.rng.random() < 0.2:
            c = self.ref
            whole = [c("arr"), c("mp"), c("st"), c("st.c"), f"map_keys({c('mp')})", f"struct({c('u')}, {c('st')}.a)"]
            return self.rng.choice(whole)
        return self.scalar()
