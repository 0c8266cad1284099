"""Where the rows of each split come from: the hub, a file or folder of the user's, or the rows shipped here."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cppo_lab.errors import UserError

BENCHMARKS = ("aime24", "aime25", "aime26")
SPLITS = ("train", *BENCHMARKS)
SHIPPED = Path(__file__).parent / "rows"
SUFFIXES = (".jsonl", ".parquet")
# File names, without suffix, that a folder may hold for a split.
STEMS = {
    "train": ("train", "dapo-math-17k", "dapo_math_sample"),
    "aime24": ("aime24", "aime-2024", "aime_2024"),
    "aime25": ("aime25", "aime-2025", "aime_2025"),
    "aime26": ("aime26", "aime-2026", "aime_2026"),
}


@dataclass(frozen=True)
class HubFile:
    """One file of a data set on huggingface.co, pinned."""

    repository: str
    revision: str
    file: str
    sha256: str


# Not fetched when this was written (no network): revisions and checksums agree between several public projects
# that pin the same files. A wrong one cannot do harm: a file that differs is refused.
HUB = {
    "train": HubFile(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        "data/dapo-math-17k.parquet",
        "534375d6bb8630d22ab46a56e11f2ffec1d288d8f7d04099bc82d68948705941",
    ),
    "aime24": HubFile(
        "BytedTsinghua-SIA/AIME-2024",
        "aa49075e24ad594b79fdf0bdcefa735c2181be67",
        "data/aime-2024.parquet",
        "12154e38a716d12db5731f9a022ae69a610c4f7d0e0dcc04e902887a686877e7",
    ),
    "aime25": HubFile(
        "MathArena/aime_2025",
        "c94da77eb22bbd6439e62a323bec18493a421302",
        "data/train-00000-of-00001.parquet",
        "9f9066ff48ad2e31f9bf1b1ac6d5e80693195f987985f2859f89dd25ffa51c2d",
    ),
    "aime26": HubFile(
        "MathArena/aime_2026",
        "d2de22f3c656b4f56cf8981212186377d1e23bc3",
        "data/train-00000-of-00001.parquet",
        "d91db799651b4cc1f0734f52792a695c9cc60dac342524b3d8e5b2ff31c3e957",
    ),
}


@dataclass(frozen=True)
class Source:
    """A file to read a split from, and what the manifest says of it."""

    path: Path
    origin: str
    sha256: str


def sources_of(source: str, say: Callable[[str], None]) -> dict[str, Source]:
    """The file of every split.

    Args:
        source: `sample` (the rows shipped here), `hub`, or a path: a file is the training set, a folder may hold
            a file per split (see `STEMS`). Benchmarks that a path does not bring are the shipped ones.
        say: takes a line of progress.

    Raises:
        UserError: the path does not exist or is ambiguous, or the hub does not answer.
    """
    shipped = {split: local(path, "shipped") for split, path in _folder_files(SHIPPED).items()}
    if source == "sample":
        return shipped
    if source == "hub":
        return {split: _fetched(HUB[split], say) for split in SPLITS}
    path = Path(source)
    if path.is_file():
        return shipped | {"train": local(path, "local")}
    if not path.is_dir():
        raise UserError(f"--from {source}: no such file or folder; valid: hub, sample, or an existing path")
    in_folder = {split: local(file, "local") for split, file in _folder_files(path).items()}
    if "train" not in in_folder:
        names = ", ".join(f"{stem}{suffix}" for stem in STEMS["train"] for suffix in SUFFIXES)
        raise UserError(f"--from {source}: the folder holds no training set; name it one of {names}")
    return shipped | in_folder


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local(path: Path, kind: str) -> Source:
    """A file of this machine. `kind`: where it comes from."""
    return Source(path, f"{kind}:{path.name}", sha256_of(path))


def _folder_files(folder: Path) -> dict[str, Path]:
    """The file of each split that the folder has one for."""
    found = {}
    for split, stems in STEMS.items():
        files = [
            path for stem in stems for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()
        ]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise UserError(f"{folder} holds several files for {split} ({names}): leave one")
        if files:
            found[split] = files[0]
    return found


def _fetched(wanted: HubFile, say: Callable[[str], None]) -> Source:
    """Fetch a file of the hub into the hub's cache, or take it from there."""
    from huggingface_hub import hf_hub_download

    say(f"hub: {wanted.repository}, {wanted.file} at {wanted.revision[:8]}")
    try:
        path = Path(
            hf_hub_download(wanted.repository, wanted.file, repo_type="dataset", revision=wanted.revision)
        )
    except OSError as error:  # all of its errors: no network, offline mode, no such revision, a full disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"the hub does not give {wanted.repository}/{wanted.file} ({reason[:160]}): check the network, "
            "HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN, or fetch the file elsewhere and pass --from PATH"
        ) from error
    digest = sha256_of(path)
    if digest != wanted.sha256:
        raise UserError(
            f"{path} has sha256 {digest}, not {wanted.sha256} of {wanted.repository} at {wanted.revision[:8]}: "
            "delete it and fetch again; if the data set was changed on purpose, pass the file with --from PATH"
        )
    return Source(path, f"hub:{wanted.repository}@{wanted.revision}/{wanted.file}", digest)
