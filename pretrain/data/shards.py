"""Folders of shards as one collection of sequences, read through memory maps and checked while reading.

Opening reads only manifests and file sizes. A shard is mapped when one of its sequences is first read. The first
`OPEN_SHARDS` stay mapped; any other is mapped again for each batch, which limits file descriptors and maps for any
number of shards. (Sequences are drawn at random, so keeping other shards open would not help.)

Which sequence a sample reads is a matter of numbers alone: `mixture.py`.

A folder may be a URL (`remote.py`): its shards are then read from local copies. With `order=windows`, or
for remote folders, `expect` tells which shards are read next; shards of other windows are unmapped.

Shape letters: B batch, L length, C mask copies, X any shape.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from data_prep.defaults import require_shards
from data_prep.manifest import HELD_OUT_NAME, MANIFEST_NAME, Manifest, load_manifest
from data_prep.masking import bytes_per_copy, mask_size
from data_prep.shards import IndexedFile, file_problems, mapped, tokenizer_problems
from electra_sampler.foundation.config import ConfigError, LocalProblem, explained, few, refuse
from electra_sampler.foundation.files import with_suffix
from pretrain.data.mixture import Mixture
from pretrain.data.remote import CACHE, GB, Copy, Missing, local_folder, remote_folder, url_of

OPEN_SHARDS = 32
"""Shards that stay mapped. Each takes 3 descriptors and 3 maps: 192 of each for training and held-out text together."""
ALIKE = ("tokenizer_sha256", "vocab_size", "seq_length", "mask_copies")
"""Manifest fields that must be equal in all folders that are read together."""
SHOWN = 3
"""Problems shown per folder."""
VERIFY = "`python data_prep/inspect_shards.py --verify` lists all damage, and build_shards.py repairs it"


class Shards:
    """One or several folders of shards as one collection; sequences are numbered across all folders.

    Args:
        folders: written by build_shards, with equal tokenizer, sequence length and number of mask copies.
        weights: relative sampling weight of each folder; empty: its number of sequences.
        window: shards per window of the order `windows`; 0: a permutation of the whole folder.

    Attributes:
        names: the folders or URLs, as given. folders: the local folder of each; for a URL, the folder of its copies.
        manifest: the first folder's; its fields on tokens and masks hold for all folders.
        mixture: which sequence each sample reads.
        one_segment: true if no sequence has a second segment.

    Raises:
        ConfigError: a folder is incomplete; its manifest, tokenizer and shards are from different builds; or the
            folders cannot be read together.
    """

    def __init__(self, *folders: Path, weights: Sequence[float] = (), window: int = 0) -> None:
        urls = [url_of(folder) for folder in folders]
        self.names = tuple(url or str(folder) for url, folder in zip(urls, folders, strict=True))
        self.folders = tuple(map(local_folder, folders))
        manifests = [load_manifest(folder) for folder in self.folders]
        self.manifest = manifests[0]
        _require_alike(self.names, manifests)
        for folder, url, part in zip(self.folders, urls, manifests, strict=True):
            _require_one_build(folder, part, of_shards=url is None)
        shards = [
            (folder, url, shard)
            for folder, url, part in zip(self.folders, urls, manifests, strict=True)
            for shard in part.shards
        ]
        self._prefixes = [folder / shard.name for folder, _, shard in shards]
        self._is_remote = any(urls)
        self._copies = [Copy(remote_folder(url), shard) if url else None for _, url, shard in shards]
        self._starts = np.cumsum([0, *(shard.sequences for _, _, shard in shards)])
        self.mixture = Mixture(self.names, [part.shards for part in manifests], weights, window)
        self._mapped: dict[int, _MappedShard] = {}
        self._expected: dict[int, tuple[list[int], list[int]]] = {}
        self.one_segment = all(part.config.one_segment for part in manifests)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def expect(self, sample_B: np.ndarray, seed: int) -> None:
        """Prepares for reading the samples, in ascending order: fetches their windows and the next ones from remote
        folders in the background, and unmaps the shards of other windows.
        """
        if not self.mixture.window and not self._is_remote:
            return
        expected = self._expected | self.mixture.needed(sample_B, seed)
        if expected == self._expected:
            return
        self._expected = expected
        in_order = [shard for part in zip(*expected.values(), strict=True) for shards in part for shard in shards]
        self._mapped = {shard: self._mapped[shard] for shard in in_order if shard in self._mapped}
        if copies := [copy for shard in in_order if (copy := self._copies[shard])]:
            CACHE.expect(copies)

    def problems(self, cache_gb: float) -> Iterator[str]:
        """Yields a problem if a cache of this size is too small for the order: for all remote shards, or for two
        windows of each remote folder.
        """
        remote, window = [copy for copy in self._copies if copy], self.mixture.window
        whole = sum(copy.shard.size for copy in remote)
        if not window and whole > cache_gb * GB:
            yield (
                f"order: got 'full', but the remote shards hold {whole / GB:.1f} GB, more than the"
                f" {cache_gb:g} GB of --cache_gb; use --set order=windows, or --cache_gb {-(-whole // GB)}"
            )
        needed = sum(
            sum(sorted(copy.shard.size for copy in remote if copy.folder.local == folder)[-2 * window :])
            for folder in self.folders
        )
        if window and needed > cache_gb * GB:
            yield (
                f"cache_gb: got {cache_gb:g}, but two windows of {window} shards take up to"
                f" {needed / GB:.1f} GB; use --cache_gb {-(-needed // GB)}, or --set window lower"
            )

    def lengths(self, index_B: np.ndarray) -> np.ndarray:
        """Returns the length of each sequence in tokens, int64 [B]."""
        lengths_B = np.empty(len(index_B), dtype=np.int64)
        for file, items, rows in self._by_shard(index_B):
            lengths_B[rows] = file.lengths_of(items)
        return lengths_B

    def read(self, index_B: np.ndarray, copy_XB: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reads a batch: padded ids [B, L], masks [B, L] (true if masked) from each sequence's mask copy, [B], and
        lengths [B]. With several copies of each sequence, [C, B], the masks are [C, B, L].

        Raises:
            LocalProblem: a sequence or its mask is damaged; names shard and sequence.
        """
        length = self.manifest.seq_length
        ids_BL = np.full((len(index_B), length), self.manifest.special_tokens.pad, dtype=np.int64)
        masked_XBL = np.zeros((*copy_XB.shape, length), dtype=bool)
        lengths_B = np.empty(len(index_B), dtype=np.int64)
        for file, items, rows in self._by_shard(index_B):
            lengths_B[rows] = file.gather_ids(items, rows, ids_BL)
            bits = file.masks[items, copy_XB[..., rows]]
            masked_XBL[..., rows, :] = np.unpackbits(bits, axis=-1, count=length, bitorder="little")
        self._require_sound(index_B, ids_BL, masked_XBL, lengths_B)
        return ids_BL, masked_XBL, lengths_B

    def _by_shard(self, index_B: np.ndarray) -> "Iterator[tuple[_MappedShard, np.ndarray, np.ndarray]]":
        """Yields each shard with any of the sequences, with their indices in the shard and their rows in the batch."""
        shard_B = self._shard_of(index_B)
        for shard in np.unique(shard_B):
            rows = np.flatnonzero(shard_B == shard)
            yield self._open(int(shard)), index_B[rows] - self._starts[shard], rows

    def _open(self, shard: int) -> "_MappedShard":
        if shard in self._mapped:
            return self._mapped[shard]
        copy = self._copies[shard]
        while True:
            if copy:
                CACHE.require(copy)
            try:
                opened = _MappedShard(
                    self._prefixes[shard], int(self._starts[shard + 1] - self._starts[shard]), self.manifest
                )
                if copy:
                    opened.map_all()
                break
            except (LocalProblem, OSError):
                if copy is None or copy.is_complete():
                    raise  # else another run has just removed it from the cache
        if len(self._mapped) < OPEN_SHARDS:
            self._mapped[shard] = opened
        return opened

    def _shard_of(self, index_B: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, index_B, side="right") - 1

    def _require_sound(
        self, index_B: np.ndarray, ids_BL: np.ndarray, masked_XBL: np.ndarray, lengths_B: np.ndarray
    ) -> None:
        """Raises `LocalProblem` for damage that is cheap to detect; `inspect_shards.py --verify` finds all of it."""
        special, rows = self.manifest.special_tokens, np.arange(len(index_B))
        checks = {
            "does not begin with [CLS]": ids_BL[:, 0] != special.cls,
            "does not end with [SEP]": ids_BL[rows, lengths_B - 1] != special.sep,
            "has an id beyond the vocabulary": ids_BL.max(axis=1) >= self.manifest.vocab_size,
            "does not have ceil(0.15 n) masked positions": masked_XBL.sum(axis=-1) != mask_size(lengths_B),
            "has a mask beyond its end": masked_XBL.shape[-1] - masked_XBL[..., ::-1].argmax(axis=-1) > lengths_B,
        }
        for problem, wrong_XB in checks.items():
            if wrong_XB.any():
                index = index_B[np.argmax(wrong_XB) % len(index_B)]
                shard = int(self._shard_of(index))
                sequence = index - self._starts[shard]
                raise LocalProblem(f"data: {self._prefixes[shard]} is damaged: sequence {sequence} {problem}; {VERIFY}")


def _require_alike(names: Sequence[str], manifests: Sequence[Manifest]) -> None:
    first = {name: getattr(manifests[0], name) for name in ALIKE}
    problems = [
        f"data: {folder} has another vocabulary than {names[0]}; rebuild it with the first folder's tokenizer as"
        " --vocab, or leave it out"
        if name == "tokenizer_sha256"
        else f"data: {folder} has {name} {getattr(manifest, name)}, expected {value} as in {names[0]}; rebuild it"
        " with the first folder's settings, or leave it out"
        for folder, manifest in zip(names, manifests, strict=True)
        for name, value in first.items()
        if getattr(manifest, name) != value
    ]
    named = Counter(name if url_of(Path(name)) else str(Path(name).resolve()) for name in names)
    problems += [
        f"data: {folder} is named twice; give it once, with a larger weight"
        for folder, times in sorted(named.items())
        if times > 1
    ]
    refuse(problems)


class _MappedShard:
    """One memory-mapped shard: the index of its ids is mapped when it is opened, ids and masks on first use."""

    def __init__(self, prefix: Path, sequences: int, manifest: Manifest) -> None:
        self._prefix, self._manifest = prefix, manifest
        try:
            self._ids = IndexedFile(prefix)
        except ConfigError as error:
            raise LocalProblem(f"data: {error}") from None
        if (self._ids.dtype, len(self._ids)) != (np.uint16, sequences):
            raise LocalProblem(f"data: {prefix}.idx is not an index of {sequences} sequences; {VERIFY}")

    def map_all(self) -> None:
        """Maps ids and masks now, so that they outlive the removal of their files from the cache."""
        _ = self._ids.data, self.masks

    @cached_property
    def masks(self) -> np.ndarray:
        """The mask bitmaps as bytes, [sequences, copies, width]."""
        path = with_suffix(self._prefix, ".mask.bin")
        with explained(f"data: {path} cannot be read", VERIFY, (OSError, ValueError), LocalProblem):
            width = bytes_per_copy(self._manifest.seq_length)
            return mapped(path, np.dtype(np.uint8)).reshape(len(self._ids), self._manifest.mask_copies, width)

    def lengths_of(self, items: np.ndarray) -> np.ndarray:
        """Returns the lengths of these sequences in tokens.

        Raises:
            LocalProblem: the index is damaged at one of them.
        """
        lengths = self._ids.lengths[items]
        starts = self._ids.offsets[items]
        last = len(self._ids) - 1
        following = np.where(items < last, self._ids.offsets[np.minimum(items + 1, last)], self._ids.size)
        wrong = (
            (lengths < 3)
            | (lengths > self._manifest.seq_length)
            | (starts % 2 != 0)
            | (following != starts + 2 * lengths)
        )
        if wrong.any():
            raise LocalProblem(f"data: {self._prefix}.idx is damaged at sequence {items[np.argmax(wrong)]}; {VERIFY}")
        return lengths

    def gather_ids(self, items: np.ndarray, rows: np.ndarray, out_BL: np.ndarray) -> np.ndarray:
        """Copies the sequences into rows of `out_BL`, with one gather from the memory map; returns their lengths."""
        lengths = self.lengths_of(items)
        starts = self._ids.offsets[items] // 2
        columns = np.arange(out_BL.shape[1])
        inside = columns < lengths[:, None]
        flat = np.minimum(starts[:, None] + columns, len(self._ids.data) - 1)
        out_BL[rows] = np.where(inside, self._ids.data[flat], out_BL[rows])
        return lengths


def _require_one_build(folder: Path, manifest: Manifest, of_shards: bool) -> None:
    """Checks that a folder's tokenizer and, if `of_shards`, its shard sizes match its manifest.

    Raises:
        ConfigError: they do not.
    """
    problems = [*tokenizer_problems(folder, manifest)]
    shards = manifest.shards if of_shards else ()
    problems += [problem for shard in shards for problem in file_problems(folder, shard, checksums=False)]
    if problems:
        raise ConfigError(
            f"data: {folder} is damaged: {'; '.join(few(problems, 'problems', SHOWN))}; rerun build_shards.py with the"
            " same options to repair it, or restore the right files"
        )


def manifests_sha256(folders: Iterable[Path]) -> str:
    """Returns the checksum of the manifests of local folders, which hold the checksum of every shard."""
    return hashlib.sha256(b"".join((folder / MANIFEST_NAME).read_bytes() for folder in folders)).hexdigest()


def open_shards(*folders: Path, weights: Sequence[float] = (), window: int = 0) -> Shards:
    """Opens the training shards of a run."""
    for folder in folders:
        if not url_of(folder):
            require_shards(folder)
    return Shards(*folders, weights=weights, window=window)


def open_held_out(*folders: Path) -> Shards | None:
    """Opens the held-out shards of these folders, weighted by number of sequences; `None` if no folder has any."""
    found = []
    for folder in folders:
        with suppress(Missing):  # of a URL
            if (local_folder(folder / HELD_OUT_NAME) / MANIFEST_NAME).is_file():
                found.append(folder / HELD_OUT_NAME)
    return Shards(*found) if found else None
