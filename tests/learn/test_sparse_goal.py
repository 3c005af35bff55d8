"""A sparse goal in a plane, which chance hardly ever finds, is learned with hindsight alone."""

from tests.run.helpers import csv_rows, small_run

FLAGS = (
    "--agent sac --env-steps 650 --seed-steps 200 --eval-every 650 --eval-episodes 3 --net.mlp 64 "
    "--learn.seed-updates 1 "
    "--learn.batch 128 --learn.learning-rate 2e-3 --learn.policy-learning-rate 2e-3 "
    "--learn.target-momentum 0.95 --learn.discount 0.9 --vary replay.hindsight=0,0.8"
)


def test_a_goal_is_reached_with_hindsight_and_not_without(tmp_path) -> None:
    small_run(tmp_path / "run", "probe/plane", *FLAGS.split())
    without, with_it = (float(row["near"]) for row in csv_rows(tmp_path / "run", "eval.csv")[-2:])
    assert without < 0.1 and with_it > 0.5
