"""Pieces of the pages that people read: human units, Markdown tables, pictures, links to stored objects. Pure text."""

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tasks.errors import RecipeError

# Prefect keeps an artifact in its database and sends it whole with every view.
MAX_PAGE_BYTES = 100_000
NOT_AVAILABLE = "n/a"
_KIB = 1024
_MINUTE_S = 60
_HOUR_S = 3600
_MOST_TEXT = 300
_PNG_START = b"\x89PNG"
_ESCAPES = str.maketrans(
    {"|": "\\|", "<": "&lt;", "[": "\\[", "]": "\\]", "`": "'", "*": "\\*", "_": "\\_", "\n": " ", "\r": " "}
)

Value = str | int | float | None


@dataclass(frozen=True)
class StoredObject:
    """An object in the store: a short name, its s3:// URI, its size."""

    name: str
    uri: str
    size_bytes: int


@dataclass(frozen=True)
class Plot:
    """A picture with its title; data is an SVG or a PNG."""

    title: str
    data: bytes


def human_bytes(size: float) -> str:
    """Return a size like 512 B, 1.5 KiB or 256 MiB."""
    if not math.isfinite(size):
        return NOT_AVAILABLE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < _KIB:
            return f"{_significant(size)} {unit}"
        size /= _KIB
    return f"{_significant(size)} TiB"


def human_seconds(seconds: float) -> str:
    """Return a duration like 0.4 s, 12 s, 3 min 20 s or 2 h 05 min."""
    if not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"


def human_number(value: float | None, digits: int | None = None) -> str:
    """Return a number for reading: thousands separated, digits decimals or three significant ones, else n/a."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    if digits is not None:
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else _significant(value)


def human_percent(fraction: float | None, digits: int = 1) -> str:
    """Return a share of 0 to 1 as percent."""
    return NOT_AVAILABLE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{digits}f} %"


def fact_text(key: str, value: Value) -> str:
    """Return a fact's value in the unit that its key ends with: _s, _bytes, _fraction, _rate."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, str | bool):
        return str(value)
    if key.endswith("tok_per_s"):
        return f"{human_number(value)} tok/s"
    for ending, text in (("_s", human_seconds), ("_bytes", human_bytes)):
        if key.endswith(ending):
            return text(value)
    return human_percent(value) if key.endswith(("_fraction", "_rate")) else human_number(value)


def fact_label(key: str) -> str:
    """Return a fact's key as words, without the unit that its value shows."""
    if key.endswith("tok_per_s"):
        return key.replace("tok_per_s", "speed").replace("_", " ")
    return key.removesuffix("_s").removesuffix("_bytes").removeprefix("num_").replace("_", " ")


def short(text: str) -> str:
    """Return a text cut where a table cell would become a page."""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def escaped(text: str) -> str:
    """Return foreign text that stays one table cell and is never read as Markdown or HTML."""
    return text.translate(_ESCAPES)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right_from: int = 1) -> str:
    """Return a GitHub Markdown table; columns from right_from on are right-aligned. Cells must be escaped already."""
    rules = ["---" if column < right_from else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rules, *rows))


def image(plot: Plot) -> str:
    """Return the picture as Markdown that shows without any server: a data URI."""
    kind = "png" if plot.data.startswith(_PNG_START) else "svg+xml"
    return f"![{escaped(plot.title)}](data:image/{kind};base64,{base64.b64encode(plot.data).decode('ascii')})"


def object_link(uri: str, browser_url: str | None) -> str:
    """Return the s3:// URI as code and, with a template that holds {bucket} and {key}, an http link beside it.

    Raises RecipeError when the template is not an http URL with {key}.
    """
    code = f"`{uri.replace('`', '%60').replace('|', '%7C')}`"
    if browser_url is None:
        return code
    if not browser_url.startswith(("http://", "https://")) or "{key}" not in browser_url:
        raise RecipeError(
            f"DRAFTWORKS_S3_BROWSER_URL is {browser_url!r}; expected an http(s) URL with {{bucket}} and {{key}}"
        )
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    url = browser_url.replace("{bucket}", quote(bucket, safe="")).replace("{key}", quote(key, safe="/"))
    return f"{code} [open]({url})"


def objects_table(objects: Sequence[StoredObject], browser_url: str | None, *, most: int) -> str:
    """Return a table of stored objects with their sizes and links, at most `most` of them."""
    rows = [
        (escaped(found.name), human_bytes(found.size_bytes), object_link(found.uri, browser_url))
        for found in objects[:most]
    ]
    rest = len(objects) - len(rows)
    if rest:
        size = sum(found.size_bytes for found in objects[most:])
        rows.append((f"and {rest:,} more", human_bytes(size), "listed in the manifest"))
    header, rule, *lines = markdown_table(("object", "size", "where"), rows).splitlines()
    return "\n".join([header, rule.removesuffix("---: |") + "--- |", *lines])


def page(sections: Iterable[str], plots: Sequence[Plot] = (), *, plots_after: int = 1) -> str:
    """Return the sections as one page, the pictures after the first plots_after ones.

    A picture that would make the page longer than MAX_PAGE_BYTES is named instead of shown.
    """
    parts = [section for section in sections if section]
    left = MAX_PAGE_BYTES - len("\n\n".join(parts).encode())
    pictures = []
    for plot in plots:
        picture = image(plot)
        if len(picture) > left:
            picture = f"*{escaped(plot.title)}: {human_bytes(len(plot.data))} do not fit on this page.*"
        left -= len(picture) + 2
        pictures.append(picture)
    return "\n\n".join([*parts[:plots_after], *pictures, *parts[plots_after:]]) + "\n"


def _significant(value: float) -> str:
    """Return three significant digits, without an exponent where a person would not write one."""
    if value and (abs(value) < 0.001 or abs(value) >= 1e15):
        return f"{value:.2e}"
    decimals = 0 if abs(value) >= 100 or value == int(value) else 2 if abs(value) < 10 else 1
    if value and abs(value) < 0.1:
        decimals = 4
    return f"{value:,.{decimals}f}"
