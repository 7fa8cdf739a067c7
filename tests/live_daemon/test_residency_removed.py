"""Models that leave the store while they are in memory."""

from concurrent.futures import ThreadPoolExecutor

from live import chat_body, is_gone, wait_until
from residency_steps import Fake, Start, load, n_loads, states, wait_empty


def test_a_removed_model_leaves_memory(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["old"]))
    load(daemon, "m", keep_alive=-1)
    daemon.json("DELETE", "/api/delete", {"model": "m"})
    wait_empty(daemon)
    daemon.create("m", fake_model(pieces=["new"]))
    assert daemon.chat("m", "hi")["message"]["content"] == "new"


def test_a_model_removed_in_the_middle_of_an_answer_ends_it_and_its_name_is_free_at_once(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["old "], endless=True, step_s=0.01))
    stream = daemon.stream("/api/chat", {**chat_body("m", "hi"), "keep_alive": -1})
    next(stream)
    daemon.json("DELETE", "/api/delete", {"model": "m"})
    daemon.create("m", fake_model(pieces=["new"]))
    assert daemon.chat("m", "hi")["message"]["content"] == "new"
    assert next(stream)["message"]["content"]  # the answer goes on
    assert sorted(model["state"] for model in daemon.ps()) == ["ready", "stopping"]
    stream.close()
    wait_until(lambda: states(daemon) == {"m": "ready"}, "the removed one to be gone")


def test_a_name_with_new_weights_lets_the_old_ones_go(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["old"]))
    load(daemon, "m", keep_alive=-1)
    (old,) = daemon.runners()
    daemon.create("m", fake_model(pieces=["new"]))
    wait_until(lambda: is_gone(old), "the old weights to be gone")
    assert daemon.chat("m", "hi")["message"]["content"] == "new"


def test_a_model_stays_loaded_as_long_as_it_has_another_name(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("one", fake_model(pieces=["ok"]))
    load(daemon, "one")
    daemon.json("POST", "/api/copy", {"source": "one", "destination": "two"})
    daemon.json("DELETE", "/api/delete", {"model": "one"})
    assert daemon.chat("two", "hi")["message"]["content"] == "ok"
    assert n_loads(daemon, "one") == 1
    assert n_loads(daemon, "two") == 0
    daemon.json("DELETE", "/api/delete", {"model": "two"})
    wait_empty(daemon)


def test_a_model_removed_while_it_loads_does_not_come(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["ok"], load_s=600))
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(daemon.request, "POST", "/api/chat", chat_body("m", "hi"))
        wait_until(lambda: states(daemon) == {"m": "loading"}, "the load to begin")
        daemon.json("DELETE", "/api/delete", {"model": "m"})
        assert waits.result()[0] == 500
    wait_empty(daemon)
