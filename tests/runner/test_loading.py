"""An empty runner's answers, up to the load: plans may be asked for again and again."""

from collections.abc import Callable, Iterable
from pathlib import Path

from localrun.ipc.messages import Load, MakePlan, Outbox, Planned, Progress
from localrun.memory import Plan
from localrun.runner.engine.layout import Shape
from localrun.runner.loading import Question, answer_until_loaded
from localrun.runner.model import Model
from localrun.spec import LoadSpec

FakeModelWriter = Callable[..., Path]


def spec_of(path: Path) -> LoadSpec:
    return LoadSpec(str(path), "digest", n_ctx=64, n_parallel=2, n_threads=1, engine="fake")


def keep(spec: LoadSpec, model: Model) -> tuple[LoadSpec, Model]:
    return spec, model


def ask(questions: Iterable[Question]) -> tuple[LoadSpec, list[Outbox]]:
    sent: list[Outbox] = []
    spec, _model = answer_until_loaded(iter(questions).__next__, sent.append, keep)
    return spec, sent


def plans(spec: LoadSpec, *held: dict[str, int]) -> list[Plan]:
    _, sent = ask([*(MakePlan(spec, one) for one in held), Load(spec)])
    items = [item for outbox in sent for item in outbox.items]
    assert all(isinstance(item, Planned | Progress) for item in items)
    return [item.plan for item in items if isinstance(item, Planned)]


def test_a_script_plans_by_the_memory_that_others_hold(fake_model: FakeModelWriter) -> None:
    spec = spec_of(fake_model(needs_bytes=60, machine_bytes=100))
    alone, beside, too_late = plans(spec, {}, {"CPU": 40}, {"CPU": 41})
    assert (alone.fit, beside.fit, too_late.fit) == ("now", "now", "crowded")
    assert (alone.fits, beside.fits, too_late.fits) == (True, True, False)
    assert too_late.available == {"CPU": 59}
    assert too_late.needs["CPU"].total_bytes == 60


def test_a_script_larger_than_the_machine_never_fits(fake_model: FakeModelWriter) -> None:
    (plan,) = plans(spec_of(fake_model(needs_bytes=101, machine_bytes=100)), {})
    assert plan.fit == "never"
    assert not plan.fits


def test_a_script_without_sizes_always_fits(fake_model: FakeModelWriter) -> None:
    (plan,) = plans(spec_of(fake_model()), {"CPU": 1 << 39})
    assert plan.fit == "now"


def test_a_loaded_script_holds_what_its_plan_said(fake_model: FakeModelWriter) -> None:
    spec = spec_of(fake_model(needs_bytes=60))
    _, model = answer_until_loaded(iter([Load(spec)]).__next__, lambda _outbox: None, keep)
    model.open(Shape("unified", 64, 2, 2, 128, None))
    assert model.info.device_bytes == {"CPU": 60}
