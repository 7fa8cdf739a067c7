"""Costs follow what was observed, and rows beside streams follow costs."""

import pytest

from localrun.runner.engine.cost_model import CostModel


def test_the_first_decode_is_believed_and_later_ones_are_averaged() -> None:
    costs = CostModel()
    costs.saw_decode(0.1)
    assert costs.decode_s == 0.1
    costs.saw_decode(0.2)
    assert costs.decode_s == pytest.approx(0.13)


def test_a_few_prompt_rows_say_less_than_many() -> None:
    few, many = CostModel(row_s=0.001), CostModel(row_s=0.001)
    few.saw_prefill(4, 4 * 0.01)
    many.saw_prefill(400, 400 * 0.01)
    assert 0.001 < few.row_s < many.row_s < 0.01


@pytest.mark.parametrize("name", ["decode", "prefill", "save", "restore"])
def test_estimates_follow_a_change_within_a_handful_of_steps(name: str) -> None:
    costs = CostModel(decode_s=1.0, row_s=1.0, save_s=1.0, restore_s=1.0)
    for _ in range(15):
        if name == "decode":
            costs.saw_decode(0.1)
        else:
            getattr(costs, f"saw_{name}")(100, 10.0)
    estimate = costs.row_s if name == "prefill" else getattr(costs, f"{name}_s")
    assert estimate == pytest.approx(0.1, abs=0.01)


def test_nothing_moved_is_no_division_by_zero() -> None:
    costs = CostModel()
    costs.saw_save(0, 0.001)
    costs.saw_restore(0, 0.001)


@pytest.mark.parametrize(("n_tokens", "swap_s", "recompute_s"), [(0, 0, 0), (100, 0.5, 0.2)])
def test_prices_are_by_the_token(n_tokens: int, swap_s: float, recompute_s: float) -> None:
    costs = CostModel(row_s=0.002, save_s=0.004, restore_s=0.001)
    assert costs.swap_s(n_tokens) == pytest.approx(swap_s)
    assert costs.recompute_s(n_tokens) == pytest.approx(recompute_s)


def test_before_anything_is_known_moving_is_cheaper_than_evaluating() -> None:
    costs = CostModel()
    assert costs.swap_s(100) < costs.recompute_s(100)


@pytest.mark.parametrize(
    ("decode_s", "row_s", "target_s", "limit", "rows", "ending"),
    [
        pytest.param(0.02, 0.001, 0.0605, 512, 40, 50, id="what is left of the target"),
        pytest.param(0.02, 0.001, 0.25, 512, 230, 287, id="what is left, in rows"),
        pytest.param(0.02, 0.001, 0.25, 100, 100, 100, id="no more than a batch"),
        pytest.param(0.02, 0.001, 0.01, 512, 16, 20, id="a prompt always goes on"),
        pytest.param(0.02, 0.001, 0.01, 8, 8, 8, id="even in a small batch"),
        pytest.param(0.02, 0.005, 0.25, 512, 46, 57, id="less than a tile"),
        pytest.param(0.02, 0.0045, 0.25, 512, 64, 64, id="nearly a tile is one, at its end too"),
        pytest.param(0.01, 0.001, None, 512, 240, 300, id="a quarter of a second"),
        pytest.param(0.1, 0.001, None, 512, 150, 187, id="a quarter of a second with the decodes"),
        pytest.param(0.4, 0.001, None, 512, 200, 250, id="slow streams slow down by half"),
        pytest.param(0.0, 0.002, None, 512, 125, 156, id="nothing known yet"),
    ],
)
def test_rows_beside_streams(
    decode_s: float, row_s: float, target_s: float | None, limit: int, rows: int, ending: int
) -> None:
    costs = CostModel(decode_s=decode_s, row_s=row_s)
    assert costs.rows_beside(target_s, limit=limit) == (rows, ending)


@pytest.mark.parametrize(
    ("n_prompts", "n_streams", "target_s", "rows"),
    [
        pytest.param(1, 4, None, 240, id="one prompt beside streams"),
        pytest.param(4, 4, None, 240, id="as many"),
        pytest.param(5, 4, None, 490, id="more prompts than streams"),
        pytest.param(4, 1, None, 240, id="more prompts than streams, but few"),
        pytest.param(5, 4, 0.1, 90, id="a target that somebody set holds"),
    ],
)
def test_a_step_may_take_longer_while_most_wait_for_their_first_token(
    n_prompts: int, n_streams: int, target_s: float | None, rows: int
) -> None:
    costs = CostModel(decode_s=0.01, row_s=0.001)
    found, _ = costs.rows_beside(target_s, limit=512, n_prompts=n_prompts, n_streams=n_streams)
    assert found == rows
