"""`cppo_lab.testing.vectors`: what it finds in the golden file, in damaged ones, and in files of other sizes."""

import json
import zipfile
from pathlib import Path

import numpy
import pytest
import torch

from cppo_lab.testing.vectors import Vectors, check, compare, is_exact, is_input, main
from tests.maths.test_golden import PATH, VECTORS

ARRAYS, MANIFEST = VECTORS.arrays, VECTORS.manifest


def part(*cases: str, **changed: numpy.ndarray) -> Vectors:
    """Some cases of the golden file, or the blocks without cases; `changed`: arrays in place of its own."""
    arrays = {key: array for key, array in (ARRAYS | changed).items() if key.partition("/")[0] in cases}
    manifest = {name: value for name, value in MANIFEST.items() if name != "keys"}
    return Vectors(
        arrays,
        manifest | {"cases": {case: MANIFEST["cases"][case] for case in cases if case in MANIFEST["cases"]}},
    )


def saved(path: Path, vectors: Vectors) -> Path:
    numpy.savez(path, manifest=numpy.array(json.dumps(vectors.manifest)), **vectors.arrays)
    return path


def test_a_file_that_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the golden file does: the next test, and tests/maths/test_golden.py."""
    vectors = part("binary")
    assert main([str(saved(tmp_path / "v.npz", vectors))]) == 0
    computed = [key for key in vectors.arrays if not is_input(vectors, key)]
    said = f"{len(computed)} arrays checked, 0 mismatches, 0 unknown keys"
    assert capsys.readouterr().out.splitlines() == [said]


def kinds() -> list[str]:
    """One computed array of every kind: of every part and name over the cases, and the blocks without cases."""
    kinds = {}
    for key in ARRAYS:
        if not is_input(VECTORS, key):
            case, _, rest = key.partition("/")
            kinds[rest if case in MANIFEST["cases"] else key] = key
    return list(kinds.values())


def test_a_change_of_any_computed_array_is_found() -> None:
    """One array of every kind, in one go: exactly these are reported, each at the place of the change, and no other of
    all.
    """
    arrays, places = dict(ARRAYS), {}
    for key in kinds():
        array = ARRAYS[key].astype(numpy.float64)
        place = tuple(size // 2 for size in array.shape)
        if key == "theory/constants":
            place = (5, 7)  # not one of its arguments
        array[place] = 1 - array[place] if is_exact(key) else array[place] * 1.001 + 1e-4
        arrays[key], places[key] = array, str(list(place)) if place else ""
    report = check(Vectors(arrays, MANIFEST))
    assert {mismatch.key: mismatch.place for mismatch in report.mismatches} == places
    assert len(places) > 250


def test_the_line_of_a_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = ARRAYS["main_topk/mask/cppo"].copy()
    mask[0, 3] = 1 - mask[0, 3]
    changed = part("main_topk", **{"main_topk/mask/cppo": mask, "main_topk/D/js": mask})
    assert main([str(saved(tmp_path / "v.npz", changed))]) == 1
    lines = capsys.readouterr().out.splitlines()
    expected, got = f"{mask[0, 3]:g}", f"{1 - mask[0, 3]:g}"
    assert lines[0] == f"MISMATCH main_topk/mask/cppo[0, 3]: expected {expected}, got {got} (float64)"
    assert "UNKNOWN  main_topk/D/js: not checked" in lines
    assert lines[-1].endswith("1 mismatches, 1 unknown keys")


def test_a_small_change_is_found() -> None:
    for key, change in (("binary/grad/cppo", 1e-6), ("binary/mask/cppo", 1e-12), ("theory/mdp/L", 1e-8)):
        case = key.partition("/")[0]
        [mismatch] = check(part(case, **{key: numpy.asarray(ARRAYS[key] + change)})).mismatches
        assert mismatch.key == key and mismatch.where.startswith("float64") and mismatch.got != "none"


def test_a_file_in_float32_is_compared_as_such() -> None:
    vectors = part("main_topk")
    for key, array in vectors.arrays.items():
        vectors.arrays[key] = array.astype(numpy.float32) if array.dtype == float else array
    assert check(vectors).mismatches == []


def test_a_missing_array_is_a_mismatch() -> None:
    left = part("binary")
    del left.arrays["binary/loss/cppo/token-mean"], left.arrays["binary/in/D"]
    assert {
        "MISMATCH binary/loss/cppo/token-mean: expected an array, got none (listed in the manifest)",
        "MISMATCH binary/mask/cppo: expected inputs to compute it from, got none (float64: the file has no array "
        "'binary/in/D')",
    } <= set(check(left).lines())
    few = part("theory")
    count = len(few.arrays)
    [mismatch] = check(Vectors(few.arrays, few.manifest | {"keys": count + 2})).mismatches
    assert str(mismatch) == f"manifest/keys: expected {count + 2} arrays, got {count + 1} (with itself)"


def test_inputs_that_make_no_sense_are_mismatches() -> None:
    broken = ARRAYS["binary/in/logp"].copy()
    broken[0, 0] = numpy.nan
    mismatches = check(part("binary", "main_topk", **{"binary/in/logp": broken})).mismatches
    assert {mismatch.key.split("/")[0] for mismatch in mismatches} == {"binary"}
    [mask] = [mismatch for mismatch in mismatches if mismatch.key == "binary/mask/cppo"]
    assert "logp is NaN or infinite at 1 valid places" in mask.where


def other_sizes() -> Vectors:
    """Responses 1..4 of a golden case, cut to 17 tokens, under another name; the process of two tokens."""
    arrays = {}
    for key, array in ARRAYS.items():
        case, part, name = (*key.split("/"), "")[:3]
        if (
            case == "main_topk"
            and part not in ("loss", "dloss")
            and not name.startswith(("rel_", "advantage_seq"))
        ):
            cut = array[1:5, :17] if array.ndim > 1 and array.shape[1] == 24 else array[1:5]
            arrays[f"mine/{part}/{name}"] = cut
    row = ARRAYS["theory/constants"][7].copy()
    columns = MANIFEST["theory_columns"]
    order = numpy.random.default_rng(0).permutation(len(columns))
    arrays["theory/constants"] = row[None, order]
    del arrays["mine/in/group_keep"]
    manifest = {
        "cases": {"mine": {"hp": MANIFEST["cases"]["main_topk"]["hp"], "K": 20}},
        "theory_columns": [columns[position] for position in order],
    }
    return Vectors(arrays, manifest)


def test_files_of_other_sizes() -> None:
    vectors = other_sizes()
    report = check(vectors)
    assert report.mismatches == report.unknown == [] and report.checked > 70
    case = vectors.manifest["cases"]["mine"]
    for name, factor in (("delta", 0.3), ("w_min", 0.5), ("delta_b_min", 0.2), ("trm_max", 30), ("span", 2)):
        hp = {**case["hp"], name: case["hp"][name] * factor}
        manifest = {**vectors.manifest, "cases": {"mine": {**case, "hp": hp}}}
        assert check(Vectors(vectors.arrays, manifest)).mismatches, f"{name} of the manifest is not used"
    manifest = {**vectors.manifest, "cases": {"mine": {**case, "K": 3}}}
    assert {m.key.split("_")[1] for m in check(Vectors(vectors.arrays, manifest)).mismatches} == {"topk"}


def test_comparison_is_exact_for_masks_and_never_passes_nan() -> None:
    one = torch.ones(2)
    almost = torch.tensor([1.0, 1.0 + 1e-6])
    assert compare("c/mask/cppo", "float32", one, almost, 0.0) is not None
    assert compare("c/val/cppo", "float32", one, almost, 2e-5) is None
    assert compare("c/val/cppo", "float32", one, one * torch.nan, 2e-5) is not None
    assert compare("c/val/cppo", "float32", one * torch.nan, one, 2e-5) is not None
    shape = compare("c/val/cppo", "float32", one, one[None], 2e-5)
    assert str(shape) == "c/val/cppo: expected shape [2], got shape [1, 2] (float32)"
    assert is_exact("a/mask/cppo") and is_exact("a/metric/prefix_counts")
    assert not is_exact("a/mask/cppo_soft_inv") and not is_exact("a/val/cppo")


def damaged(folder: Path, kind: str) -> Path:
    path = folder / "file.npz"
    whole = PATH.read_bytes()
    if kind == "pickled":
        numpy.savez(path, manifest=numpy.array("{}"), evil=numpy.array([print], dtype=object))
    elif kind == "crc":
        numpy.savez(path, manifest=numpy.array("{}"), a=numpy.full(99, 7, numpy.uint8))
        path.write_bytes(path.read_bytes().replace(bytes([7] * 99), bytes([7] * 98 + [8])))
    elif kind == "member":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest", "{}")
    elif kind[0] in "{[":
        numpy.savez(path, manifest=numpy.array(kind))
    else:
        flipped = whole[:400_000] + b"damage" + whole[400_006:]
        path.write_bytes({"cut": whole[:500_000], "flipped": flipped}[kind])
    return path


DAMAGES = [
    ("cut", "is not an .npz archive, or cut short"),
    ("flipped", "cannot be read"),
    ("crc", "cannot be read (Bad CRC-32"),
    ("pickled", "cannot be read (Object arrays cannot be loaded when allow_pickle=False"),
    ("member", "cannot be read ("),
    ("[1]", "cannot be read ("),
    ('{"cases": {"a": {}}}', "cannot be read ('hp')"),
    ('{"cases": {"a": {"hp": {}, "methods": 3}}}', "(the manifest lacks a list of names)"),
    ('{"cases": {}, "theory_columns": 3}', "(the manifest lacks a list of names)"),
    ('{"cases": {}}', "holds no array that can be checked"),
]


@pytest.mark.parametrize("kind, message", DAMAGES)
def test_a_file_that_cannot_be_checked_costs_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, message: str
) -> None:
    path = damaged(tmp_path, kind)
    with pytest.raises(SystemExit) as ended:
        main([str(path)])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and err.startswith(f"cppo: error: {path} ")
    assert message in err and "pass a vectors file" in err


def test_arrays_that_nothing_defines_are_unknown_and_no_mismatch() -> None:
    keys = [
        *(
            "nocase/mask/cppo",
            "binary/nopart/cppo",
            "binary/in/nothing",
            "binary/D/tv_other",
            "binary/w/cubic",
        ),
        *("binary/delta_b/adaptive_xmany", "binary/val/norule", "binary/grad/norule", "binary/mask/norule"),
        *("binary/loss/norule/token-mean", "binary/loss/cppo/token-median", "binary/metric/suffix_counts"),
        *("extreme/D/js", "extreme/D/tv_topk", "theory/mdp/gain"),
        *("binary/val/cispo_high", "binary/val/gspo_9"),
    ]
    report = check(part("nocase", "binary", "extreme", "theory", **dict.fromkeys(keys, numpy.zeros(3))))
    assert (report.unknown, report.mismatches) == (keys, [])
