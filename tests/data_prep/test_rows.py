"""Claims about tables of documents."""

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.formats import Reading, read_rows
from data_prep.sources import find_sources
from electra_sampler.foundation.config import ConfigError

from .conftest import peak_of_reading, read_shards

TEXTS = [f"Text {number}. " + "word " * (number % 50) for number in range(1000)]


def write(path, columns, **settings):
    parquet.write_table(pyarrow.table(columns), path, **settings)
    return path


def rows_of(path, column="text"):
    return list(read_rows(path, 0, None, column))


@pytest.mark.parametrize("rows", [7, 1000])
def test_every_row_of_every_group_is_read_in_order(tmp_path, rows):
    path = write(tmp_path / "a.parquet", {"id": list(range(1000)), "text": TEXTS}, row_group_size=rows)
    assert rows_of(path) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize(
    "kind",
    [
        *(pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.binary_view()),
        *(pyarrow.dictionary(pyarrow.int8(), text) for text in (pyarrow.string(), pyarrow.binary())),
    ],
    ids=str,
)
def test_text_may_have_any_of_arrows_types_and_be_missing(tmp_path, kind):
    path = write(tmp_path / "a.parquet", {"body": pyarrow.array(["a", None, "", "a"], kind)})
    assert parquet.read_schema(path).field("body").type == kind
    assert rows_of(path, "body") == [b"a", None, b"", b"a"]


def test_pandas_categories_are_text_also_where_the_file_stops_using_a_dictionary(tmp_path):
    settings = {"dictionary_pagesize_limit": 1000, "row_group_size": 700, "write_batch_size": 10}
    path = write(tmp_path / "a.parquet", {"text": pyarrow.array(TEXTS).dictionary_encode()}, **settings)
    assert rows_of(path) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary()])
def test_text_may_have_any_encoding_and_begin_alike_in_every_row(tmp_path, kind, encoding):
    texts = [None, *("The same beginning of every text. " * 20 + text for text in TEXTS)]
    settings = {"use_dictionary": False, "column_encoding": {"text": encoding}, "data_page_version": "2.0"}
    path = write(tmp_path / "a.parquet", {"id": [*range(1001)], "text": pyarrow.array(texts, kind)}, **settings)
    assert rows_of(path) == [text and text.encode() for text in texts]


def test_two_columns_of_one_name_are_one_line(tmp_path):
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"text_column: .*a\.parquet has 2 columns named text; rename all but one$"):
        rows_of(tmp_path / "a.parquet")


@pytest.mark.parametrize("value", [["a"], {"a": "b"}, 1])
def test_a_column_of_anything_else_is_not_text(tmp_path, value):
    with pytest.raises(ConfigError, match="no text column named text"):
        rows_of(write(tmp_path / "a.parquet", {"text": [value]}))


def test_a_chunk_holds_about_its_budget_of_rows(tmp_path):
    write(tmp_path / "a.parquet", {"text": [*TEXTS, None]})
    [(_, chunks)] = read_shards(find_sources([tmp_path]), 1e9, Reading(), 10_000)
    documents = [document for chunk in chunks for document in chunk.documents(Reading())]
    assert [document.content.decode() for document in documents] == [*(text.strip() for text in TEXTS), ""]
    assert documents[-1].reason == "no_text"
    assert 10 < len(chunks) == len({chunk.place for chunk in chunks})


def test_a_missing_column_is_named_with_the_existing_ones(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": [1], "body": ["a"], "title": ["b"]})
    for column in ("text", "id"):
        with pytest.raises(
            ConfigError, match=f"no text column named {column}; name one of its text columns: body, title$"
        ):
            rows_of(path, column)


def test_a_table_without_any_text_column_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", {"id": [1]})
    with pytest.raises(ConfigError, match=r"no text column named text; it has none at all: replace it$"):
        rows_of(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_damaged_file_is_named(tmp_path, share):
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read"):
        rows_of(path)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("others", [0, 200])
def test_a_row_group_or_a_text_too_large_is_refused_by_name(tmp_path, monkeypatch, dictionary, others):
    texts = ["Ka lo mi."] * others + ["Ka lo mi. " * 300_000]
    path = write(tmp_path / "a.parquet", {"text": texts}, use_dictionary=dictionary)
    assert len(rows_of(path)) == others + 1
    monkeypatch.setattr("data_prep.formats.LONGEST_RECORD", 2_000_000)
    with pytest.raises(ConfigError, match=r"a\.parquet has a text of 2 MiB, expected at most 1 MiB: too large"):
        rows_of(path)
    monkeypatch.setattr("data_prep.formats._LARGEST_GROUP", 2_500_000)
    with pytest.raises(ConfigError, match=r"a\.parquet has a row group with 2 MiB of text, expected at most 2: too"):
        rows_of(path)


@pytest.mark.parametrize(
    ("texts", "end", "most"),
    [
        (["a"] * 50 + ["Ka lo mi. " * 30_000_000], "refused", 200),  # 300 MB, which used to take 1.6 GB of memory
        (["a", "Ka lo mi. " * 3_300_000], "read", 700),
        pytest.param(  # one long text in the dictionary, referred to by every row: 1.1 GB
            ["Ka lo mi. " * 3_300_000] * 64, "read", 700, marks=pytest.mark.long
        ),
    ],
    ids=["too large", "the largest", "repeated"],
)
def test_a_text_of_any_size_takes_less_than_a_gigabyte(tmp_path, texts, end, most):
    write(tmp_path / "a.parquet", {"text": pyarrow.array(texts, pyarrow.large_string())})
    del texts
    ended, peak = peak_of_reading(tmp_path / "a.parquet")
    assert ended == end
    assert peak < most
