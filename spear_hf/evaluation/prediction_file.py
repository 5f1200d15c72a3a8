"""The file of predictions: written batch by batch, whole after a kill, and continued by a resumed run."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spear_hf.errors import CheckpointError, ConfigError
from spear_hf.evaluation.predictions import Prediction
from spear_hf.utils.files import write_atomically
from spear_hf.utils.strict_json import strict_json

SUFFIXES = (".csv", ".jsonl", ".parquet")
NAMES = "surrogateescape"  # the name of a file may be no text; its bytes are kept
COLUMNS = tuple(Prediction("", 0, None, 0.0, (), 0.0).to_dict())


class PredictionFile:
    """Appends predictions; after a kill, a resumed run drops the rows of batches that it answers again.

    A csv and a jsonl grow with the run. Parquet cannot be appended to: its rows are kept in a jsonl beside it until
    `finish` writes it.

    >>> import tempfile
    >>> from spear_hf.evaluation.prediction_file import PredictionFile
    >>> from spear_hf.evaluation.predictions import Prediction
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = PredictionFile(f"{folder}/answers.csv")
    ...     file.append([Prediction("a.jpg", 1, "dog", 0.75, ((1, 0.75), (0, 0.25)), 0.81)])
    ...     print(file.finish().read_text().splitlines()[1])
    a.jpg,1,dog,0.75,1:0.75 0:0.25,0.81,,,,false,,images,0

    Args:
        path: its ending says the format: .csv, .jsonl or .parquet. The first write replaces what is there, unless a run
            is resumed.

    Raises:
        ConfigError: another ending, or a path that cannot be a file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix not in SUFFIXES:
            raise ConfigError(f"predictions={str(path)!r} is not allowed; the name ends in {', '.join(SUFFIXES)}")
        if self.path.is_dir() or any(parent.is_file() for parent in self.path.parents):
            raise ConfigError(f"predictions={str(path)!r} is in the way of a folder or a file; give another path")
        self._growing = self.path if self.path.suffix != ".parquet" else self.path.with_suffix(".parquet.jsonl")
        self._began = False

    def append(self, predictions: Sequence[Prediction]) -> None:
        """Write the predictions of one batch; the first call of a resumed run drops that batch and later ones.

        Raises:
            CheckpointError: the run is resumed, and the file lacks predictions of earlier batches.
        """
        if not predictions:
            return
        if not self._began:
            self._begin(predictions[0].batch)
        text = self._lines([prediction.to_dict() for prediction in predictions])
        with self._growing.open("ab") as file:  # closed: a kill cuts at most this batch
            file.write(text.encode(errors=NAMES))

    def finish(self) -> Path:
        """The path of the whole file; parquet is written now.

        Raises:
            CheckpointError: there are no predictions, as where a finished run is shown again and its file is gone.
        """
        if self.path.suffix == ".parquet" and self._growing.is_file():
            _write_parquet(self._read(), self.path)
            self._growing.unlink()
        if not self.path.is_file():
            raise CheckpointError(f"{self.path} does not exist, and the run is finished; {_START_AGAIN}")
        return self.path

    def _begin(self, first: int) -> None:
        """Keep only the rows of the batches before `first`, where this run starts."""
        rows = [row for row in self._read() if int(row["batch"]) < first] if first else []
        if first and {int(row["batch"]) for row in rows} != set(range(first)):
            raise CheckpointError(
                f"{self._growing} does not hold the predictions of all {first} batches before; {_START_AGAIN}"
            )
        head = ",".join(COLUMNS) + "\n" if self._growing.suffix == ".csv" else ""
        write_atomically(self._growing, (head + self._lines(rows)).encode(errors=NAMES))
        self._began = True

    def _lines(self, rows: Iterable[dict[str, Any]]) -> str:
        if self._growing.suffix != ".csv":
            return "".join(strict_json(row) + "\n" for row in rows)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_cell(row[column]) for column in COLUMNS] for row in rows)
        return text.getvalue()

    def _read(self) -> list[dict[str, Any]]:
        """The whole rows; a last one without its end is left out, because a kill may have cut it."""
        if not self._growing.is_file():
            return []
        text = self._growing.read_bytes().decode(errors=NAMES)
        text = text[: text.rfind("\n") + 1]
        try:
            if self._growing.suffix == ".csv":
                return [row for row in csv.DictReader(io.StringIO(text, newline="")) if row["batch"]]
            return [json.loads(line) for line in text.splitlines()]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self._growing} holds something else than predictions; {_START_AGAIN}") from error


_START_AGAIN = "pass fresh=True to start again"


def _cell(value: Any) -> str:
    """A value in a csv: numbers as they are, the top classes as "class:probability"."""
    if isinstance(value, list):
        return " ".join(f"{row['class']}:{row['probability']}" for row in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value != value else str(value)  # NaN, where the model's logits are not finite


def _write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    top = pa.list_(pa.struct([("class", pa.int64()), ("probability", pa.float64())]))
    kinds = {"top5": top, "learned": pa.bool_()}
    kinds |= dict.fromkeys(("class", "source_class", "label", "batch"), pa.int64())
    kinds |= dict.fromkeys(("probability", "entropy", "source_probability"), pa.float64())
    schema = pa.schema([(column, kinds.get(column, pa.string())) for column in COLUMNS])
    rows = [row | {"file": row["file"].encode(errors="replace").decode()} for row in rows]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    write_atomically(path, sink.getvalue())
