"""What the daemon says about the machine that it runs on."""

import asyncio
from pathlib import Path

from localrun.diagnosis import Diagnosis, diagnose
from localrun.ipc.messages import DevicesListed
from localrun.memory import Device
from localrun.settings import Settings
from localrun.supervisor.devices import DevicesUnknown

CPU = Device("CPU", "cpu", 1, 2)


def diagnosis(settings: Settings, *, problem: str = "") -> Diagnosis:
    async def list_devices() -> DevicesListed:
        if problem:
            raise DevicesUnknown(problem)
        return DevicesListed((CPU,), ("box:1",), "flags")

    return asyncio.run(diagnose(settings, list_devices))


def test_all_is_said(tmp_path: Path) -> None:
    found = diagnosis(Settings(models=tmp_path / "not" / "yet", gpu_overhead_bytes={"": 5}))
    assert (found.devices, found.unreachable, found.build) == ((CPU,), ("box:1",), "flags")
    assert (found.devices_problem, found.models_problem) == ("", "")
    assert found.models_folder == str(tmp_path / "not" / "yet")
    assert found.disk_free_bytes > 0
    assert found.gpu_overhead_bytes == {"": 5}
    assert found.cpu_reason


def test_devices_that_cannot_be_listed_leave_the_rest(tmp_path: Path) -> None:
    found = diagnosis(Settings(models=tmp_path), problem="a driver may hang")
    assert (found.devices, found.devices_problem) == ((), "a driver may hang")
    assert found.n_threads >= 1


def test_the_setting_decides_about_threads(tmp_path: Path) -> None:
    found = diagnosis(Settings(models=tmp_path, num_thread=3))
    assert (found.n_threads, found.cpu_reason) == (3, "set by NUM_THREAD")


def test_a_file_is_no_folder_for_models(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = diagnosis(Settings(models=tmp_path / "file" / "models"))
    assert found.models_problem == f"{tmp_path / 'file'} is no folder"
