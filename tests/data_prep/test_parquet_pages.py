"""Claims about the sizes of a Parquet file's pages."""

import io

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.parquet_pages import page_sizes

TEXTS = [None, *(f"Text {number}. " + "word " * (number % 50) for number in range(3000))]


def written(**settings):
    """A table in a file, and the metadata of its one column chunk."""
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": TEXTS}), file, **settings)
    return file, parquet.ParquetFile(file).metadata.row_group(0).column(0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression": "zstd"},
        {"use_dictionary": False, "compression": "none"},
        {"data_page_version": "2.0"},
        {"write_page_checksum": True},
        {"write_statistics": False},
        {"data_page_size": 1000, "write_batch_size": 10},
    ],
)
def test_pages_are_as_large_as_the_column_but_for_their_headers(settings):
    file, chunk = written(**settings)
    sizes = list(page_sizes(file, chunk))
    headers = chunk.total_uncompressed_size - sum(sizes)
    assert 0 < headers < 1000 * len(sizes)  # with the least and the greatest text
    assert (len(sizes) > 10) == ("data_page_size" in settings)


def test_a_damaged_header_is_an_error_wherever_it_is_damaged():
    file, chunk = written()
    content = file.getvalue()
    start = chunk.dictionary_page_offset
    for place in range(start, start + 20):
        for value in (0x00, 0x1F, 0xFF):
            damaged = io.BytesIO(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                sizes = list(page_sizes(damaged, chunk))
            except OSError:
                continue
            assert min(sizes) >= 0  # what is left of it may read as another header: the reader then finds it damaged


def test_a_file_that_is_cut_short_is_an_error():
    file, chunk = written()
    with pytest.raises(OSError, match="cut short"):
        list(page_sizes(io.BytesIO(file.getvalue()[: chunk.data_page_offset]), chunk))
