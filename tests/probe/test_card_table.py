"""All tasks of a report side by side, for a model card."""

from tests.probe.made_up_rows import depth_rows, knn_rows, row, teacher
from veca.probe.card_table import NOTE, card_table
from veca.probe.rows import Row


def table(rows: list[Row]) -> list[list[str]]:
    """The cells of the table, titles first."""
    lines = [line for line in card_table(rows).splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if "--" not in line
    ]


def test_every_way_to_run_has_one_line_with_all_tasks() -> None:
    dense = {"task": "segmentation", "data": "voc", "metric": "miou", "protocol": "dinov3-small"}
    rows = [
        *knn_rows(),
        *(row(**dense, budget=budget, value=40.0 + budget) for budget in (8, 64)),
        teacher(**dense, value=58.5),
    ]
    found = table(rows)
    assert found[0] == ["model", "cores", "px", "pets: knn top1_k20, %",
                        "voc: segmentation miou, %", "ms", "GFLOPs", "patches/core"]  # fmt: skip
    assert found[1] == ["runs/tiny", "8", "128", "60.00 ± 1.00", "48.00", "2.00", "0.80", "8.00"]
    assert found[2][1:5] == ["16", "128", "64.00 ± 1.00", "-"]
    assert found[4][1:5] == ["64", "128", "67.00 ± 1.00", "104.00"]
    assert found[5][:5] == ["efficientnet-lite2 (teacher)", "-", "128", "80.00 ± 0.00", "58.50"]
    assert [line[0] for line in found[6:]] == ["runs/baseline (baseline)"] * 4


def test_other_resolutions_and_shares_are_other_lines() -> None:
    rows = [*depth_rows(), row(budget=8, ffn=0.25, resolution=256), row(budget=8, ffn=1.0)]
    ways = [line[:4] for line in table(rows)[1:]]
    assert ["runs/tiny", "8", "0.25", "256"] in ways
    assert ["runs/tiny", "8", "1", "512"] in ways  # of a model that has shares, all is one
    assert ["efficientnet-lite2 (teacher)", "-", "-", "512"] in ways
    assert len(ways) == len({tuple(way) for way in ways}) == 8


def test_names_tell_roles_and_a_note_ends_it() -> None:
    names = {line[0] for line in table([*knn_rows(), row(model="runs/other")])[1:]}
    assert names == {
        "runs/tiny", "runs/other", "efficientnet-lite2 (teacher)", "runs/baseline (baseline)",
    }  # fmt: skip
    assert card_table(knn_rows()).rstrip().endswith(NOTE)


def test_other_weights_of_one_name_are_told_apart() -> None:
    rows = [row(value=50.0), row(value=60.0, weights="a" * 64), teacher()]
    assert [line[0] for line in table(rows)[1:]] == [
        "runs/tiny @01234567", "runs/tiny @aaaaaaaa", "efficientnet-lite2 (teacher)"]  # fmt: skip


def test_every_command_is_told_once() -> None:
    rows = [
        row(),
        row(budget=16),
        row(budget=32, command="veca probe suite x.toml"),
        row(command=""),
    ]
    assert (
        "Measured by `veca probe knn pets --model runs/tiny --out out`, `veca probe suite x.toml`."
    ) in card_table(rows).splitlines()
    assert "Measured by" not in card_table([row(command="")])


def test_untrained_models_are_told_as_such() -> None:
    assert table([row(trained=False)])[1][0] == "runs/tiny, untrained"


def test_every_column_is_told_with_protocol_counts_and_seeds() -> None:
    assert (
        "- pets: knn top1_k20, %: protocol dinov2, feature image; val; "
        "pictures: 888 train, 444 test; seeds: 0, 1, 2"
    ) in card_table(knn_rows()).splitlines()


def test_weights_and_pictures_are_told_by_their_hashes() -> None:
    lines = card_table([row(data_sha256="ab" * 32), teacher(weights=None)]).splitlines()
    assert (
        "Weights, by their SHA-256: runs/tiny 0123456789abcdef; "
        "efficientnet-lite2 (teacher) no stored weights."
    ) in lines
    assert any("888 train, 444 test (sha256 abababababababab); seeds: 0" in line for line in lines)


def test_lines_are_timed_by_the_task_that_timed_most_of_them() -> None:
    dense = {"task": "segmentation", "data": "voc", "metric": "miou", "protocol": "dinov3-small"}
    few = [row(budget=8, milliseconds=2.0), row(budget=64, milliseconds=3.0)]
    more = [
        row(**dense, budget=budget, milliseconds=time)
        for budget, time in ((8, 40.0), (16, 50.0), (64, 60.0))
    ]
    alone = row(**dense, budget=8, resolution=384, milliseconds=90.0)
    times = [line[-1] for line in table([*few, *more, alone])[1:]]
    assert times == ["40.0", "50.0", "60.0", "90.0"]


def test_sets_that_are_not_whole_are_marked() -> None:
    assert "pets: knn top1_k20, % (PARTIAL)" in table([row(partial=("9 of 10",))])[0]


def test_two_features_of_one_task_are_columns_that_can_be_told_apart() -> None:
    titles = table([row(), row(feature="patch-mean")])[0]
    assert "pets: knn top1_k20, %, dinov2, image" in titles
    assert "pets: knn top1_k20, %, dinov2, patch-mean" in titles


def test_weights_of_one_name_keep_together() -> None:
    rows = [row(budget=budget, weights=weights * 64) for budget in (8, 64) for weights in "ab"]
    assert [line[:2] for line in table(rows)[1:]] == [
        ["runs/tiny @aaaaaaaa", "8"], ["runs/tiny @aaaaaaaa", "64"],
        ["runs/tiny @bbbbbbbb", "8"], ["runs/tiny @bbbbbbbb", "64"]]  # fmt: skip
