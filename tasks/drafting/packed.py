"""Finding a row's hidden states in packed shards, as the extraction leaves them.

A folder holds index.json and shards:

    index.json               {"shards": [{"file": "states-00000.safetensors", "first_row": 0, "num_rows": 2}]}
    states-00000.safetensors hidden_states [sumT, L, D] served dtype, token_ids [sumT] int64, offsets [rows + 1] int64

Row r of a shard is hidden_states[offsets[r]:offsets[r + 1]]; rows are numbered over all shards, without gaps.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import EvidenceError

INDEX_NAME = "index.json"


@dataclass(frozen=True)
class PackedShard:
    """One shard file and the rows that it holds."""

    file: Path
    first_row: int
    num_rows: int

    @property
    def end_row(self) -> int:
        """Return the number of the first row after this shard."""
        return self.first_row + self.num_rows


def read_index(folder: Path) -> tuple[PackedShard, ...]:
    """Return the shards of a packed folder in row order.

    Raises EvidenceError: no index, a shard that is not there, or rows that are missing or listed twice.
    """
    path = folder / INDEX_NAME
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["shards"]
        shards = [PackedShard(folder / str(e["file"]), int(e["first_row"]), int(e["num_rows"])) for e in entries]
    except OSError as error:
        raise EvidenceError(f"cannot read the index of the hidden states, {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path} is not an index of packed hidden states: {error!r}") from error
    shards.sort(key=lambda shard: shard.first_row)
    expected = 0
    for shard in shards:
        if shard.first_row != expected or shard.num_rows < 1:
            raise EvidenceError(f"{path}: {shard.file.name} starts at row {shard.first_row}; expected row {expected}")
        if not shard.file.is_file():
            raise EvidenceError(f"{path} lists {shard.file.name}, which is not in {folder}; extract again")
        expected = shard.end_row
    if not shards:
        raise EvidenceError(f"{path} lists no shard; the extraction left no hidden states")
    return tuple(shards)
