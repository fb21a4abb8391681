"""Corpus rows: what the target read and wrote, as the server's own token ids.

{"id": "q1", "input_ids": [1, 9690, ...], "loss_mask": [0, ..., 1], "num_prompt_tokens": 31, "finish_reason": "stop"}
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.corpus.conversation import is_encodable
from tasks.errors import EvidenceError

# Names of the shards of a corpus.
ROWS_PATTERN = "rows-*.parquet"
COLUMNS = ("id", "input_ids", "loss_mask", "num_prompt_tokens", "finish_reason")


@dataclass(frozen=True)
class Row:
    """One answered prompt. input_ids: prompt then answer; loss_mask: 1 on the answer."""

    id: str
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    num_prompt_tokens: int
    finish_reason: str


class RowRejected(ValueError):
    """An answer must not be trained on; str(error) is the reason, counted in the account."""


def _check_text(text: str) -> None:
    if not text.strip():
        raise RowRejected("empty answer")
    if not is_encodable(text):
        raise RowRejected("answer holds half a surrogate pair")
    if text.count("<think>") > text.count("</think>"):
        raise RowRejected("reasoning tag never closed")


def to_row(name: str, prompt_ids: Sequence[int], answer_ids: Sequence[int], text: str, finish_reason: str) -> Row:
    """Return the row of an answer. Raises RowRejected: empty, unclosed reasoning, unusable text or ids."""
    _check_text(text)
    if not answer_ids or not prompt_ids:
        raise RowRejected("no token ids came with the answer")
    mask = (0,) * len(prompt_ids) + (1,) * len(answer_ids)
    return Row(name, (*prompt_ids, *answer_ids), mask, len(prompt_ids), finish_reason)


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write one shard of rows as Parquet, with a fixed schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("id", pa.string()),
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.uint8())),
            ("num_prompt_tokens", pa.int32()),
            ("finish_reason", pa.string()),
        ]
    )
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    pq.write_table(pa.Table.from_pydict(columns, schema=schema), path, compression="zstd")


def read_rows(paths: Sequence[Path]) -> Any:
    """Return the rows of several shards as one pyarrow Table. Raises EvidenceError: unreadable or other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.concat_tables([pq.read_table(path) for path in paths])
    except (pa.ArrowInvalid, OSError) as error:
        raise EvidenceError(f"corpus shards cannot be read: {error}") from error
    if tuple(table.column_names) != COLUMNS:
        raise EvidenceError(f"corpus shards have columns {table.column_names}; expected {list(COLUMNS)}")
    return table
